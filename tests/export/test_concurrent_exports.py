"""Several publishers and readers of one folder never meet half of a version."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from small_policies import small_policy

from tfpolicy.verification import verify

# Lists the folder every millisecond, as a server that polls it; knows nothing but the list of
# checksums in a version, and ends when its input does.
READER = """
import os, select, sys, time

base = sys.argv[1]
seen, looks = set(), 0
while not select.select([sys.stdin], [], [], 0.001)[0]:
    looks += 1
    for version in filter(str.isdigit, os.listdir(base)):
        path = os.path.join(base, version)
        try:
            with open(os.path.join(path, "assets.extra", "tfpolicy.sha256")) as file:
                listed = {line.split()[1] for line in file}
            missing = [n for n in listed if not os.path.exists(os.path.join(path, n))]
            assert len(listed) >= 4 and not missing, (version, listed, missing)
        except (AssertionError, FileNotFoundError):
            if os.path.exists(path):
                raise
        else:
            seen.add(int(version))
print(looks, len(seen))
"""


@pytest.fixture(scope="module")
def policy():
    with small_policy("pg") as built:
        yield built


def versions(base):
    return sorted(path.name for path in base.iterdir())


def test_a_reader_that_lists_every_millisecond_sees_whole_versions_come_and_go(policy, tmp_path):
    command = [sys.executable, "-c", READER, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as reader:
        for _ in range(8):
            policy.export_model(tmp_path, keep=2)
        output, error = reader.communicate("")
    assert reader.returncode == 0, error
    looks, seen = map(int, output.split())
    assert looks > 30 and seen >= 3
    assert versions(tmp_path) == ["7", "8"]


def test_publishers_at_once_get_versions_of_their_own(policy, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        published = list(pool.map(lambda _: policy.export_model(tmp_path), range(6)))
    assert sorted(path.name for path in published) == versions(tmp_path) == list("123456")
    for path in published:
        assert all(line.same for line in verify(path))


def test_of_two_publishers_of_one_number_one_is_told_clearly(policy, tmp_path):
    def publish(_):
        try:
            return policy.export_model(tmp_path, version=4)
        except FileExistsError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(publish, range(2)))
    assert tmp_path / "4" in results
    assert any("must not exist yet" in str(r) or "must be new" in str(r) for r in results)
    assert versions(tmp_path) == ["4"]
    assert all(line.same for line in verify(tmp_path))
