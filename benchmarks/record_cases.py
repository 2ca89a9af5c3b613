"""The cases of ``record.py``: commands of medpfl by the case's name.

In a command ``{case}`` is the case's own folder, and ``{images}``, ``{pictures}``, ``{nifti}`` and ``{phantom}`` are
its data (``record_data.py``). What a case keeps is all that its commands left in its folder.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A command of medpfl, as typed behind its name.

    Attributes:
        command: arguments, separated by blanks.
        kill_after: the run in ``{case}/run`` is killed once so many rounds are finished; 0 lets it end.
    """

    command: str
    kill_after: int = 0


PHANTOM = Step("data phantom {phantom} --patients 24 --matrix 32 --seed 1")
HERE = "--env inprocess --threads 1"
SMALL = "--device cpu --seed 3 --fractions 0.05,0.05,0.1"
THREE = f"{HERE} {SMALL} --sites 3 --rounds 2"
QUICK = f"{THREE} --alone no"
SIMULATED = f"--env sim {SMALL} --sites 2 --alone no --track none"
VIT_ARGS = {"patch_size": 7, "hidden_size": 24, "mlp_dim": 24, "num_layers": 2, "num_heads": 6}
VIT = " ".join(["--model vit-tiny", *(f"--model-arg {key}={value}" for key, value in VIT_ARGS.items())])
IMPRESSION = "--local-epochs 1 --set warmup=1 --set images=20 --set admm_iterations=2 --set inner_steps=3"
CT = "--data-arg size=32 --data-arg slices=4 --seed 3 --device cpu --rounds 2 --set batch_size=8"

ALGORITHMS = {
    "local": "",
    "fedavg": "",
    "fedprox": "",
    "fedbn": "",
    "fedper": "",
    "lg-fedavg": "",
    "fedap": "",
    "d-fedap": "",
    "f-fedap": "--rounds 4",
    "vit-heads": f"{VIT} --local-epochs 1 --rounds 2",
    "fedimpres": f"{IMPRESSION} --model lenet5 --rounds 3",
}
"""Every method, with what makes it small. An option that comes twice has its last value."""

VARIANTS = {
    "threads": "fedap --threads 2",
    "seed": "fedap --seed 4",
    "fedap-mu": "fedap --set mu=0.01",
    "fedap-lambda": "fedap --set lambda=0.7 --set pretrain_share=0.5 --set pretrain_epochs=2",
    "mixing-uniform": "fedap --mixing uniform",
    "mixing-similarity": "fedper --mixing similarity",
    "mixing-classifier": "fedavg --mixing similarity-classifier",
    "mixing-running": "fedbn --mixing similarity-running --rounds 3",
    "mixing-median": "fedavg --mixing median",
    "mixing-median-bn": "fedbn --mixing median",
    "mixing-trimmed-mean": "fedavg --mixing trimmed-mean --set trim=0.2 --sites 5",
    "mixing-identity": "fedavg --personal everything --mixing identity",
    "personal-bn-top": "fedavg --personal batch-norm+top:1",
    "personal-modules": "fedap --personal modules:conv1,bn2",
    "personal-nothing": "fedap --personal nothing",
    "fedper-layers": "fedper --set layers=2",
    "lg-fedavg-layers": "lg-fedavg --set layers=2",
    "fedprox-mu": "fedprox --set mu=0.5 --local-epochs 2",
    "momentum": "fedbn --set momentum=0.9",
    "nesterov": "fedbn --set momentum=0.9 --set nesterov=1 --set weight_decay=0.001 --set lr=0.02 --set batch_size=16",
    "weight-decay": "fedbn --set weight_decay=0.01",
    "largest-weight": "fedavg --partition dirichlet:0.3 --largest-weight 1",
    "weight-cap": "fedap --weight-cap 0.26",
    "large-updates-clip": "fedavg --large-updates clip --large-factor 1.01",
    "large-updates-refuse": "fedavg --large-updates refuse --large-factor 1.01 --partition dirichlet:0.3 --min-sites 1",
    "large-updates-accept": "fedavg --large-updates accept --large-factor 1.01",
    "update-clip": "fedavg --set update_clip=0.05",
    "update-noise": "fedbn --set update_clip=1 --set update_noise=0.01",
    "statistics-epsilon": "fedap --set statistics_epsilon=10 --set statistics_clip=0.8",
    "noise-of-both": "fedap --set statistics_epsilon=10 --set update_clip=1 --set update_noise=0.01 --new-test",
    "select-by-auroc": "fedap --select-by auroc --rounds 3",
    "select-by-balanced": "fedbn --select-by balanced_accuracy --rounds 3",
    "no-validation": "fedbn --fractions 0.05,0,0.1",
    "held-out": "fedap --sites 4 --held-out 1 --new-test",
    "new-test": "local --new-test",
    "no-new-test": "fedbn --no-new-test",
    "forgetting": "fedbn --forgetting",
    "partition-iid": "fedap --partition iid",
    "partition-dirichlet": "fedap --partition dirichlet:0.5 --train-fraction 0.5",
    "official": "fedavg --official --train-fraction 0.05",
    "names": "fedap --sites north,south,east",
    "resnet32": "fedavg --model resnet32 --rounds 1 --fractions 0.02,0.02,0.05",
    "monai-network": "fedbn --model monai:DenseNet --model-arg init_features=8 --model-arg growth_rate=4 "
    "--model-arg block_config=[2,2]",
    "vit-heads-p0": f"vit-heads {VIT} --local-epochs 1 --set p=0",
    "vit-heads-p1": f"vit-heads {VIT} --local-epochs 1 --set p=1",
    "vit-heads-no-consistency": f"vit-heads {VIT} --local-epochs 1 --set consistency=0",
    "vit-heads-temperature": f"vit-heads {VIT} --local-epochs 1 --set lambda=0.5 --set temperature=2 --set p=0.3",
    "fedavg-heads": f"fedavg {VIT} --personal heads:0.5+top:1 --set consistency=1",
    "fedimpres-network": f"fedimpres {IMPRESSION} --rounds 2 --data-arg pad=32 --sites 2 --fractions 0.01,0.01,0.01 "
    "--set images=4 --no-new-test --no-forgetting",
    "fedimpres-holdout": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --holdout 0.05 --set start=holdout",
    "fedimpres-npz": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --set start={{images}}",
    "fedimpres-folder": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --set start={{pictures}}",
    "fedimpres-constraint": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --set constraint=0",
    "fedimpres-no-admm": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --set admm_iterations=0",
    "fedimpres-beta": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --set beta=0.5",
    "fedimpres-beta-0": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --set beta=0",
    "fedimpres-warmup-2": f"fedimpres {IMPRESSION} --model lenet5 --rounds 4 --set warmup=2",
    "fedimpres-steps": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --set pixel_lr=0.05 --set rho=0.4 "
    "--set gamma=0.02 --set batch_size=8",
    "fedimpres-composed": f"fedimpres {IMPRESSION} --model lenet5 --rounds 3 --personal batch-norm "
    "--mixing similarity --set mu=0.01",
}
"""Three sites in one process; what is said here goes before the small set-up."""

DATA = {
    "npz-natural": f"fedap {QUICK} --data {{images}} --partition natural --fractions 0.4,0.2,0.4",
    "npz-official": f"fedbn {QUICK} --data {{images}} --official --partition iid --data-arg pad=32",
    "pictures": f"fedap {HERE} {SMALL} --rounds 2 --data {{pictures}} --data-arg size=32 --data-arg patient=^([^_]+)_ "
    "--fractions 0.5,0.2,0.3",
    "pictures-held-out": f"fedbn {HERE} --seed 3 --device cpu --rounds 2 --data {{pictures}} --held-out south "
    "--data-arg size=28 --data-arg fit=pad --data-arg channels=grey",
    "pictures-holdout": f"fedimpres {HERE} --seed 3 --device cpu --rounds 3 {IMPRESSION} --model lenet5 --data "
    "{pictures} --data-arg size=28 --holdout 0.2 --set start=holdout --alone no",
    "scans": f"vit-heads {HERE} {CT} --data {{phantom}} {VIT.replace('patch_size=7', 'patch_size=8')} "
    "--held-out 1 --local-epochs 1",
    "scans-attention": f"vit-heads {HERE} {CT} --data {{phantom}} {VIT.replace('patch_size=7', 'patch_size=8')} "
    "--held-out 1 --local-epochs 1 --pooling attention --select-by auroc",
    "scans-f-fedap": f"f-fedap {HERE} {CT} --data {{phantom}} --alone no --data-arg spacing=[2,2,6] "
    "--data-arg window=[-1000,400] --data-arg lung_crop=false",
    "nifti": f"fedbn {HERE} --seed 3 --device cpu --rounds 2 --data {{nifti}} --data-arg size=24 --data-arg slices=4 "
    "--set batch_size=4 --fractions 0.5,0.25,0.25 --alone no",
    "own-function": f"f-fedap {HERE} --device cpu --sites 2 --rounds 4 --model own_model:Net --data own_model:hospital",
}
OWN_CT = f"vit-heads {CT} --env sim --data {{phantom}} {VIT.replace('patch_size=7', 'patch_size=8')} --local-epochs 1"
JOINS = ("local", "fedavg", "fedbn", "fedper", "lg-fedavg", "fedap", "d-fedap", "f-fedap", "vit-heads", "fedimpres")
LONG = "fedap --fractions 0.1,0.05,0.05 --rounds 8"
LONG_IMPRESSION = f"fedimpres {IMPRESSION} --model lenet5 --rounds 6"


def _resumed(run: str, common: str) -> list[Step]:
    method, _, options = run.partition(" ")
    command = f"run {method} {common} {options} --out {{case}}/"
    return [Step(f"{command}run", kill_after=2), Step(f"{command}run --resume"), Step(f"{command}never-stopped")]


def _joined(run: str, common: str, newcomers: str) -> list[Step]:
    method, _, options = run.partition(" ")
    join = f"run {method} --join {{case}}/run --local-epochs 2 --device cpu {newcomers} --out {{case}}/join"
    return [Step(f"run {method} {common} {options} --out {{case}}/run"), Step(join)]


def cases() -> dict[str, list[Step]]:
    """The steps of every case, by its name; the part before the slash says how or what it runs."""
    made: dict[str, list[Step]] = {}

    def run(name: str, command: str, common: str = "") -> None:
        method, _, options = command.partition(" ")
        made[name] = [Step(f"run {method} {common} {options} --out {{case}}/run")]

    for method, options in ALGORITHMS.items():
        run(f"inprocess/{method}", f"{method} {options}", THREE)
    for name, command in VARIANTS.items():
        run(f"inprocess/{name}", command, QUICK)
    made["inprocess/pretrain-file"] = [
        Step(f"run fedavg {QUICK} --out {{case}}/first"),
        Step(f"run fedap {QUICK} --set pretrain={{case}}/first/models/site-1.safetensors --out {{case}}/run"),
    ]
    made["inprocess/partition-file"] = [
        Step(f"run fedavg {QUICK} --partition dirichlet:0.5 --out {{case}}/first"),
        Step(f"run fedap {QUICK} --partition file:{{case}}/first/partition.json --seed 5 --out {{case}}/run"),
    ]
    made["inprocess/forgetting-later"] = [
        Step(f"run fedap {QUICK} --out {{case}}/run"),
        Step(f"run fedap {QUICK} --forgetting --new-test --resume --out {{case}}/run"),
    ]
    made["inprocess/resume"] = _resumed(LONG, QUICK)
    made["inprocess/resume-fedimpres"] = _resumed(LONG_IMPRESSION, QUICK)
    for name, command in DATA.items():
        run(f"data/{name}", command)
    for method in JOINS:
        run_of = f"{method} {ALGORITHMS[method]} --sites 4 --held-out 1"
        made[f"join/{method}"] = _joined(run_of, QUICK, "")
    made["join/uniform"] = _joined("fedap --mixing uniform --sites 4 --held-out 1", QUICK, "")
    made["join/median"] = _joined("fedavg --mixing median --sites 4 --held-out 1", QUICK, "")
    made["join/other-data"] = _joined(
        "fedap", QUICK, "--data organamnist-sample --fractions 0.05,0.05,0.1 --sites 2 --seed 3 --set lr=0.02"
    )
    variants = "fedavg fedap fedap:mixing=uniform,mu=0.01"
    made["compare/three"] = [
        Step(f"compare {variants} {THREE.replace('--seed 3', '--seeds 2')} --out {{case}}/compare"),
        Step("report {case}/compare/fedavg/seed-0 {case}/compare/fedap/seed-0 --out {case}/page.html"),
    ]
    for method, options in ALGORITHMS.items():
        # Of two sites each has one other to weigh, and similarity decides nothing.
        sites = "--sites 3" if method.endswith("fedap") else "--sites 2"
        run(f"sim/{method}", f"{method} {options}", f"{SIMULATED} --rounds 2 {sites}")
    run("sim/noise", f"fedap {VARIANTS['noise-of-both'].partition(' ')[2]}", f"{SIMULATED} --rounds 2")
    run("sim/own-function", DATA["own-function"].replace(HERE, "--env sim --track none"))
    run("sim/scans", f"{OWN_CT} --track none --alone no")
    made["sim/resume"] = _resumed(LONG, SIMULATED)
    newcomer = "--env sim --data organamnist-sample --fractions 0.05,0.05,0.1 --sites new-hospital"
    made["sim/join-fedap"] = _joined("fedap", QUICK, newcomer)
    made["sim/join-f-fedap"] = _joined("f-fedap --rounds 4", QUICK, newcomer)
    return made
