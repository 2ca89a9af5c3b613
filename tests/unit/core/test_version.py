"""By what a package's code is told from another state of it."""

import hashlib

from medpfl.core.version import own_sha256, sha256_of
from medpfl.flare.job.recipes import _carry


def test_the_hash_is_of_names_and_contents_wherever_they_lie(tmp_path):
    one, other = tmp_path / "one", tmp_path / "deeper" / "other"
    for package in (one, other):
        (package / "site").mkdir(parents=True)
        (package / "site" / "b.py").write_bytes(b"bc")
        (package / "a.py").write_bytes(b"")
        (package / "table.json").write_text(str(package))
        (package / "cli").mkdir()
        (package / "cli" / "run.py").write_text(str(package))  # of which no result is made
    assert sha256_of(one) == hashlib.sha256(b"a.py\n0\nsite/b.py\n2\nbc").hexdigest() == sha256_of(other)
    (other / "site" / "b.py").write_bytes(b"bd")
    assert sha256_of(one) != sha256_of(other)
    (other / "site" / "b.py").write_bytes(b"bc")
    (other / "site" / "b.py").rename(other / "site" / "c.py")
    assert sha256_of(one) != sha256_of(other)


def test_a_job_that_carries_the_package_has_the_hash_of_the_package(tmp_path):
    _carry("organamnist-sample", tmp_path / "medpfl")
    assert not (tmp_path / "medpfl" / "cli").exists()
    assert sha256_of(tmp_path / "medpfl") == own_sha256()
