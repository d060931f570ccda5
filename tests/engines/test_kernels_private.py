"""Kernels on disk are executed, so nothing is loaded that anybody else could have put there."""

from __future__ import annotations

import os
import stat
import warnings

import pytest

from kernels import forget, made
from thalweg import PerformanceWarning
from thalweg._engines.cpu import private_directory

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX")

MALLORY = 54321
VALUE, PLANTED = 1.5, 666.0


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A `THALWEG_CACHE_DIR` of the user's, and nothing in memory."""
    path = tmp_path / "base"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(path))
    forget(monkeypatch)
    return path


@pytest.fixture
def give_away(monkeypatch):
    """Makes a file or folder another user's: truly if root runs this, else in what stat says."""
    faked_files = set()

    def faked(look):
        def looked(*args, **options):
            status = look(*args, **options)
            if (status.st_dev, status.st_ino) not in faked_files:
                return status
            return os.stat_result([*status[:4], MALLORY, *status[5:]])

        return looked

    def give(path):
        if os.geteuid() == 0:
            os.lchown(path, MALLORY, MALLORY)
            return
        status = os.lstat(path)
        faked_files.add((status.st_dev, status.st_ino))

    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, faked(getattr(os, name)))
    return give


def kept(folder, ending="o"):
    (file,) = folder.glob(f"k_target.*{ending}")
    return file


@pytest.fixture
def planted(base, tmp_path, monkeypatch):
    """A file in `base/kernels`, well sealed, that is loaded as k_target and returns PLANTED."""
    assert made("k_target", PLANTED) == PLANTED
    forget(monkeypatch)
    assert made("k_target", VALUE) == PLANTED  # it does lie where it is looked for
    forget(monkeypatch)
    return kept(base / "kernels")


def tree(folder):
    """Mode, owner and content of all that lies in a folder, and of itself."""
    entries = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        is_regular = stat.S_ISREG(status.st_mode)
        entries[path] = status.st_mode, status.st_uid, path.read_bytes() if is_regular else None
    return entries


def silently(name, value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return made(name, value)


# Files


def linked(planted):
    planted.rename(planted.parent.parent / "elsewhere")
    planted.symlink_to(planted.parent.parent / "elsewhere")


def pipe(planted):
    planted.unlink()
    os.mkfifo(planted)


FILES = {
    "another's": lambda planted, give_away: give_away(planted),
    "writable by a group": lambda planted, give_away: planted.chmod(0o620),
    "writable by all": lambda planted, give_away: planted.chmod(0o602),
    "a link": lambda planted, give_away: linked(planted),
    "of two names": lambda planted, give_away: os.link(planted, planted.with_suffix(".2")),
    "a pipe": lambda planted, give_away: pipe(planted),
}


@pytest.mark.parametrize("plant", FILES.values(), ids=FILES)
def test_file_writable_by_others_is_replaced_not_run(planted, give_away, monkeypatch, plant):
    plant(planted, give_away)
    assert silently("k_target", VALUE) == VALUE
    assert stat.S_IMODE(planted.lstat().st_mode) == 0o600
    assert planted.lstat().st_uid == os.geteuid()
    forget(monkeypatch)
    assert silently("k_target", 2.5) == VALUE  # kept, and read


def test_folder_in_place_of_a_kernel_file_is_tolerated(planted, give_away):
    planted.unlink()
    planted.mkdir()
    with pytest.warns(PerformanceWarning, match="cannot be kept in .*kernels"):
        assert made("k_target", VALUE) == VALUE


def test_link_in_place_of_a_kernel_file_is_not_followed(planted, base):
    (base / "precious").write_text("precious")
    planted.unlink()
    planted.symlink_to(base / "precious")
    assert silently("k_target", VALUE) == VALUE
    assert (base / "precious").read_text() == "precious"


# The folder `kernels`


def moved_behind_a_link(folder, give_away):
    folder.rename(folder.parent / "moved")
    folder.symlink_to(folder.parent / "moved")


FAULTS = {
    "another's": lambda folder, give_away: give_away(folder),
    "writable by a group": lambda folder, give_away: folder.chmod(0o770),
    "writable by all": lambda folder, give_away: folder.chmod(0o707),
    "writable by all, and sticky": lambda folder, give_away: folder.chmod(0o1777),
    "a link": moved_behind_a_link,
}


@pytest.mark.parametrize("spoil", FAULTS.values(), ids=FAULTS)
def test_folder_writable_by_others_is_replaced(planted, base, give_away, monkeypatch, spoil):
    spoil(base / "kernels", give_away)
    entries_before = tree(base)
    with pytest.warns(PerformanceWarning, match=r"kernels.* is left alone") as warned:
        values = made("k_target", VALUE), made("k_second", 2.5)
    assert values == (VALUE, 2.5)
    assert len(warned) == 1
    fresh = base / "kernels-2"
    assert str(fresh) in str(warned[0].message)
    assert warned[0].filename == made.__code__.co_filename  # the user's line, not one of ours
    assert stat.S_IMODE(fresh.lstat().st_mode) == 0o700
    entries = tree(base)
    assert {path: entries[path] for path in entries_before if path != base} == {
        path: entries_before[path] for path in entries_before if path != base
    }
    forget(monkeypatch)
    assert silently("k_target", 3.5) == VALUE  # the fresh one is found again, without a word


def test_folder_readable_by_others_is_used(base, monkeypatch):
    (base / "kernels").mkdir(mode=0o755)
    assert silently("k_target", VALUE) == VALUE
    assert kept(base / "kernels")
    assert stat.S_IMODE((base / "kernels").stat().st_mode) == 0o755


def test_link_target_keeps_its_mode(base, tmp_path, give_away):
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    (base / "kernels").symlink_to(target)
    give_away(base / "kernels")
    with pytest.warns(PerformanceWarning, match="is left alone"):
        assert made("k_target", VALUE) == VALUE
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert not list(target.iterdir())


def test_cache_is_disabled_after_too_many_unsafe_folders(base):
    for name in ("kernels", *(f"kernels-{number}" for number in range(2, 10))):
        (base / name).mkdir()
        (base / name).chmod(0o777)
    with pytest.warns(PerformanceWarning, match="cannot be kept in") as warned:
        assert made("k_target", VALUE) == VALUE
    assert len(warned) == 1


# The folders on the way


def behind_a_link_of_another(base, give_away):
    base.rename(base.parent / "moved")
    base.symlink_to(base.parent / "moved")
    give_away(base)


PATH_FAULTS = {
    "another's": (lambda base, give_away: give_away(base), "belongs to user"),
    "a parent of another": (lambda base, give_away: give_away(base.parent), "belongs to user"),
    "writable by a group": (lambda base, give_away: base.chmod(0o770), "chmod go-w"),
    "writable by all": (lambda base, give_away: base.chmod(0o707), "chmod go-w"),
    "a parent writable by all": (lambda base, give_away: base.parent.chmod(0o777), "chmod go-w"),
    "another's in a sticky one": (
        lambda base, give_away: (base.parent.chmod(0o1777), give_away(base)), "belongs to user",
    ),
    "a link of another": (behind_a_link_of_another, "belongs to user"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "cause"), PATH_FAULTS.values(), ids=PATH_FAULTS)
def test_unsafe_parent_folder_disables_the_cache(planted, base, give_away, spoil, cause):
    spoil(base, give_away)
    entries_before = tree(base.parent)
    with pytest.warns(
        PerformanceWarning, match=f"cannot be kept in .*{cause}.*Set THALWEG"
    ) as warned:
        values = made("k_target", VALUE), made("k_second", 2.5)
    assert values == (VALUE, 2.5)
    assert len(warned) == 1
    assert tree(base.parent) == entries_before


def behind_a_link(base):
    base.rename(base.parent / "moved")
    base.symlink_to("moved")


def behind_an_absolute_link(base):
    (base.parent / "inner").mkdir()
    base.rename(base.parent / "inner" / "moved")
    base.symlink_to(base.parent / "inner" / ".." / "inner" / "moved")


HARMLESS = {
    "a sticky parent": lambda base: base.parent.chmod(0o1777),
    "sticky itself": lambda base: base.chmod(0o1777),
    "readable by all": lambda base: base.chmod(0o755),
    "a link of the user's": behind_a_link,
    "an absolute link of the user's": behind_an_absolute_link,
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_safe_parent_folders_keep_kernels(planted, base, change):
    change(base)
    assert silently("k_target", VALUE) == PLANTED  # here the user's own, of before
    assert silently("k_second", 2.5) == 2.5
    assert len(list(planted.parent.glob("k_second.*.o"))) == 1


def test_circular_links_terminate(base, monkeypatch):
    (base / "round").symlink_to("round")
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(base / "round"))
    with pytest.warns(PerformanceWarning, match="cannot be kept in"):
        assert made("k_target", VALUE) == VALUE


@pytest.mark.parametrize("variable", ["THALWEG_CACHE_DIR", "XDG_CACHE_HOME"])
def test_files_in_the_working_directory_are_not_run(base, planted, monkeypatch, variable):
    # It may be a checkout or an archive of anybody's.
    (base / "thalweg").symlink_to(".")
    monkeypatch.delenv("THALWEG_CACHE_DIR")
    monkeypatch.setenv(variable, base.name)
    monkeypatch.chdir(base.parent)
    with pytest.warns(PerformanceWarning, match=f"{base.name}.* is not absolute"):
        assert made("k_target", VALUE) == VALUE


def test_created_files_are_private_for_any_umask(base, monkeypatch):
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(base / "one" / "two"))
    old_umask = os.umask(0)
    try:
        assert silently("k_target", VALUE) == VALUE
    finally:
        os.umask(old_umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in base.rglob("*")}
    files = {name: mode for name, mode in modes.items() if name.startswith("k_")}
    assert {modes[name] for name in ("one", "two", "kernels")} == {0o700}
    assert set(files.values()) == {0o600}


# Between the look and the use


def test_checked_file_is_the_file_read(planted, base, monkeypatch):
    evil = base / "evil"
    evil.write_bytes(planted.read_bytes())
    planted.unlink()
    forget(monkeypatch)
    assert made("k_target", VALUE) == VALUE
    forget(monkeypatch)
    swaps = []

    def swap(name, *args, real=os.fstat):
        status = real(name, *args)
        if stat.S_ISREG(status.st_mode) and not swaps:
            os.replace(evil, planted)
            swaps.append(True)
        return status

    monkeypatch.setattr(os, "fstat", swap)
    assert made("k_target", 2.5) == VALUE
    assert swaps


def test_cache_leaves_no_descriptor_open(planted, base, give_away):
    def count():
        return len(os.listdir("/dev/fd"))

    count_before = count()
    silently("k_second", 2.5)
    base.chmod(0o777)
    with pytest.warns(PerformanceWarning):
        made("k_third", 3.5)
    assert count() == count_before


# Platforms


def test_missing_o_path_opens_folders_for_reading(planted, base, monkeypatch):
    monkeypatch.delattr(os, "O_PATH", raising=False)
    assert silently("k_target", VALUE) == PLANTED
    base.chmod(0o777)
    forget(monkeypatch)
    with pytest.warns(PerformanceWarning, match="cannot be kept in"):
        assert made("k_target", VALUE) == VALUE


def test_cache_is_disabled_without_file_owners(planted, base, monkeypatch):
    monkeypatch.setattr(private_directory, "AVAILABLE", False)
    entries_before = tree(base)
    assert (silently("k_target", VALUE), silently("k_second", 2.5)) == (VALUE, 2.5)
    assert tree(base) == entries_before


# What cannot be written can still be read


def test_folder_writable_only_by_root_is_read(planted, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError("read-only")

    assert silently("k_target", VALUE) == PLANTED
    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    forget(monkeypatch)
    with pytest.warns(PerformanceWarning, match="cannot be kept in .*read-only") as warned:
        values = made("k_target", VALUE), made("k_new", 2.5), made("k_newer", 3.5)
    assert values == (PLANTED, 2.5, 3.5)
    assert len(warned) == 1
    assert not list(planted.parent.glob("*.tmp"))
