"""Run narrow tests where they seldom run: `python tools/platforms.py oldest`, or `... debian`.

    oldest                   the oldest NumPy, llvmlite, safetensors, click and rich that
                             pyproject.toml allows, with the torch of constraints.txt
    debian trixie            Python and torch of a release of Debian, in a folder of its own;
                             needs root and Debian's packages mmdebstrap, debian-archive-keyring
    debian forky --emulate   the same for aarch64 in Debian's qemu-user-static: kernels alone,
                             whose bits are compared with those of this machine

What is installed goes into --folder, which may be deleted afterwards: one or two gigabytes.
docs/platforms.md has the last results.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/test_formula.py",
    "tests/engines/test_engines.py",
    "tests/engines/test_kernels_cache.py",
    "tests/engines/test_check_rule.py",
    "tests/engines/test_torch_layout_probe.py",
    "tests/engines/test_openmp.py",
    "tests/engines/test_dtypes.py",
    "tests/engines/test_reference.py",
    "tests/core/test_replay_cross_check.py",
    "tests/optim/test_optim.py",
    "tests/optim/test_optim_replay.py",
    "tests/optim/test_optim_torch_parity_regressions.py",
    "tests/optim/test_optim_constructors.py",
    "tests/keras/test_keras_goldens.py",
    "tests/v1/test_v1_goldens.py",
    "tests/checkpoint/test_checkpoint.py",
    "tests/formats/test_storage_container.py",
    "tests/cli/test_cli_doctor.py",
]
OLDEST = ("numpy", "llvmlite", "safetensors", "click", "rich")
HELPERS = ("pytest", "pytest-timeout", "pytest-xdist", "execnet", "hypothesis", "sortedcontainers")
PYTEST = ("-m", "pytest", "-o", "addopts=", "-m", "not slow", "-q", "-p", "no:logging", "-p",
          "no:cacheprovider")  # fmt: skip
PACKAGES = "python3-torch,python3-numpy,python3-pytest,python3-click,python3-rich"


def oldest_versions() -> dict[str, str]:
    """Return the lower bounds of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["cli"]]
    bounds = dict(requirement.split(">=") for requirement in requirements)
    return {name: bounds[name] for name in OLDEST}


def constrained(name: str) -> str:
    """Return a package in the version of constraints.txt."""
    (pin,) = re.findall(rf"^{name}==.+$", (ROOT / "constraints.txt").read_text(), re.M)
    return pin


def run_oldest(folder: Path, tests: list[str]) -> int:
    """Make the virtualenv, and run the tests in it."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    python = folder / "bin/python"
    pinned = [f"{name}=={version}" for name, version in oldest_versions().items()]
    pinned_helpers = [constrained(name) for name in ("torch", *HELPERS, "h5py", "expecttest")]
    subprocess.run([python, "-m", "pip", "install", "-q", *pinned, *pinned_helpers], check=True)
    print(*pinned, constrained("torch"), flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **_cache_in(folder)}
    return subprocess.run([python, *PYTEST, *tests], cwd=ROOT, env=environment).returncode


def _cache_in(folder: Path) -> dict[str, str]:
    return {"THALWEG_CACHE_DIR": str(folder / "tmp/thalweg"), "PYTHONDONTWRITEBYTECODE": "1"}


def run_debian(folder: Path, suite: str, emulates: bool, tests: list[str]) -> int:
    """Unpack Debian's packages, add what it lacks from the package index, and run there."""
    machine, architecture = ("aarch64", "arm64") if emulates else ("x86_64", "amd64")
    root = folder / f"{suite}-{architecture}"
    if not root.exists():
        command = ["mmdebstrap", "--quiet", "--variant=extract", f"--arch={architecture}"]
        # A mirror may be weeks old; what it signs is no less signed.
        command += ['--aptopt=Acquire::Check-Valid-Until "false"', f"--include={PACKAGES}"]
        subprocess.run([*command, suite, root], check=True)
        for name in ("bin", "sbin", "lib", "lib64"):  # which a script of Debian's links
            if not (root / name).exists():
                (root / name).symlink_to(f"usr/{name}")
        if emulates:
            shutil.copy("/usr/bin/qemu-aarch64-static", root)
    (name,) = (path.name for path in (root / "usr/bin").glob("python3.??"))
    platforms = [f"--platform=manylinux_2_{n}_{machine}" for n in (28, 27, 17)]
    requirements = [
        constrained(package) for package in ("llvmlite", "safetensors", *HELPERS, "setuptools")
    ]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:"]
    version = ["--python-version", name.removeprefix("python"), "--upgrade", "--target"]
    subprocess.run(
        [*pip, *platforms, "--platform=any", *version, root / "extra", *requirements], check=True
    )
    if not emulates:
        return _run_inside(
            root, [], f"/usr/bin/{name}", [*PYTEST, *(f"/src/{test}" for test in tests)]
        )
    report_path = root / "tmp/here.json"
    tool = [sys.executable, ROOT / "tools/kernel_bits.py", "--out", report_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(tool, check=True, env=environment)
    command_inside = ["/src/tools/kernel_bits.py", "--without-torch", "--against", "/tmp/here.json"]
    return _run_inside(root, ["/qemu-aarch64-static"], f"/usr/bin/{name}", command_inside)


def _run_inside(root: Path, emulator: list[str], python: str, arguments: list[str]) -> int:
    """Run Python in a root of its own that sees the repository at /src; mounts end with it."""
    libraries = next((root / "usr/lib").glob("*-linux-gnu")).relative_to(root)
    environment = {
        "HOME": "/tmp", "PATH": "/usr/bin", "PYTHONPATH": "/extra:/src/src", **_cache_in(Path("/")),
        "LD_LIBRARY_PATH": f"/{libraries}/blas:/{libraries}/lapack",
    }  # fmt: skip
    for name in ("src", "proc", "dev"):
        (root / name).mkdir(exist_ok=True)
    mounts = 'mount --bind "$1" "$0/src"; mount --bind /proc "$0/proc"; mount --rbind /dev "$0/dev"'
    script = f'set -e; {mounts}; cd "$0/src"; root=$0; shift; exec chroot "$root" "$@"'
    command = ["unshare", "-m", "bash", "-c", script, root, ROOT, *emulator, python, *arguments]
    return subprocess.run(command, env={**environment, "PATH": "/usr/bin:/usr/sbin"}).returncode


def main() -> int:
    """Run the command; return the exit status of the platform."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("oldest", "debian"))
    parser.add_argument("suite", nargs="?", default="trixie", help="a release of Debian")
    parser.add_argument("--emulate", action="store_true", help="aarch64, in qemu")
    parser.add_argument("--folder", type=Path, default=Path("platforms"), help="where to install")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="instead of the narrow ones")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.what == "oldest":
        return run_oldest(folder / "oldest", arguments.tests)
    if platform.machine() != "x86_64":
        parser.error("debian is for a machine of x86-64")
    return run_debian(folder, arguments.suite, arguments.emulate, arguments.tests)


if __name__ == "__main__":
    sys.exit(main())
