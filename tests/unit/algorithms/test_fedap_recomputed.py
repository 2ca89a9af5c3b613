"""FedAP once more, with nothing of the package but data, orders of samples and the sites' updates.

Pretraining on pooled data, statistics, distances, W and the first mix are written down here in numpy and plain torch.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import sites_of

from medpfl.config.run import make_config
from medpfl.core.seeding import derive_seed, generator
from medpfl.core.server_state import ServerState
from medpfl.engine.federation import Federation
from medpfl.server.rounds import advance, messages

EPOCHS, LR, BATCH, LAMBDA = 2, 0.05, 8, 0.3


def lenet(p, x, *, training):
    """LeNet-5 with batch norm by functions; also the inputs of both batch norms."""
    inputs = []

    def norm(z, k):
        inputs.append(z)
        running = (p[f"bn{k}.running_mean"], p[f"bn{k}.running_var"])
        return F.batch_norm(z, *running, p[f"bn{k}.weight"], p[f"bn{k}.bias"], training)

    for k in (1, 2):
        x = F.max_pool2d(F.relu(norm(F.conv2d(x, p[f"conv{k}.weight"], p[f"conv{k}.bias"]), k)), 2)
    x = x.flatten(1)
    for k in (1, 2):
        x = F.relu(F.linear(x, p[f"fc{k}.weight"], p[f"fc{k}.bias"]))
    return F.linear(x, p["fc3.weight"], p["fc3.bias"]), inputs


@pytest.fixture(scope="module")
def made():
    """The run, its plan, the state after the hello and after one round, and what the sites sent in it."""
    config = make_config(
        algorithm="fedap",
        sites=3,
        rounds=2,
        partition="equal-dirichlet:0.5",
        train_fraction=0.1,
        device="cpu",
        alone="no",
        settings={"pretrain_epochs": EPOCHS, "lr": LR, "batch_size": BATCH, "lambda": LAMBDA},
    )
    federation = Federation.of(config)
    plan, sites = federation.plan(), sites_of(federation)

    def step(state):
        replies = [sites[s].handle(m, federation.model()) for s, m in messages(plan, state).items()]
        sent = {u.site: {k: t.double().numpy() for k, t in u.tensors.items()} for u in replies}
        return advance(plan, state, replies, 0.0), sent

    greeted, statistics = step(ServerState())
    mixed, updates = step(greeted)
    return federation, plan, sites, statistics, greeted, mixed, updates


def pretrained(federation):
    """Plain SGD over the pooled share, batch after batch in the order that the seed gives."""
    torch.manual_seed(derive_seed(federation.config.seed, "model"))
    pooled = federation.source.pooled_training(0.2, torch.device("cpu"))
    p = {k: t.clone() for k, t in federation.model().state_dict().items()}
    trained = [k for k, t in p.items() if t.is_floating_point() and "running" not in k]
    images = (pooled.images["train"].float() - 127.5) / 127.5
    labels, order = pooled.labels["train"], generator(federation.config.seed, "pretraining", "shuffle")
    for _ in range(EPOCHS):
        shuffled = torch.randperm(len(labels), generator=order)
        ends = [*range(BATCH, len(labels), BATCH), len(labels)]
        if len(ends) > 1 and ends[-1] - ends[-2] == 1:
            del ends[-2]
        for start, end in zip([0, *ends], ends, strict=False):
            rows = shuffled[start:end]
            leaves = {k: p[k].detach().requires_grad_() for k in trained}
            loss = F.cross_entropy(lenet(p | leaves, images[rows], training=True)[0], labels[rows])
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            for k, gradient in zip(leaves, gradients, strict=True):
                p[k] = (leaves[k] - LR * gradient).detach()
    return p


def test_from_pooled_pretraining_to_the_first_mix(made):
    federation, plan, sites, statistics, greeted, mixed, updates = made
    f = pretrained(federation)
    for name, tensor in f.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(plan.pretrained[name], tensor, rtol=1e-4, atol=1e-5)

    mean, variance = {}, {}
    for name, site in sites.items():
        images = (site.data.images["train"].float() - 127.5) / 127.5
        inputs = lenet(plan.pretrained, images, training=False)[1]
        for k, z in enumerate(inputs, start=1):
            values = z.double().numpy().transpose(1, 0, 2, 3).reshape(z.shape[1], -1)
            mean[name, k], variance[name, k] = values.mean(1), values.var(1)
            np.testing.assert_allclose(statistics[name][f"statistics/bn{k}/mean"], mean[name, k], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(statistics[name][f"statistics/bn{k}/variance"], variance[name, k], rtol=1e-4)

    names = list(sites)
    w = np.zeros((3, 3))
    for i, a in enumerate(names):
        closeness = {}
        for j, b in enumerate(names):
            if i != j:
                d = 0.0
                for k in (1, 2):
                    apart = ((mean[a, k] - mean[b, k]) ** 2).sum()
                    apart += ((variance[a, k] ** 0.5 - variance[b, k] ** 0.5) ** 2).sum()
                    d += apart**0.5
                closeness[j] = 1 / d
        for j, close in closeness.items():
            w[i, j] = (1 - LAMBDA) * close / sum(closeness.values())
        w[i, i] = LAMBDA
    np.testing.assert_allclose(greeted.weights, w, rtol=1e-4)
    assert np.ptp(w[~np.eye(3, dtype=bool)]) > 0.01  # so that equal weights would not pass

    for i, a in enumerate(names):
        assert {name.partition(".")[0] for name in mixed.shared[a]} == {"conv1", "conv2", "fc1", "fc2", "fc3"}
        for key, value in mixed.shared[a].items():
            expected = sum(w[i, j] * updates[b][key] for j, b in enumerate(names))
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-4, atol=1e-6)
