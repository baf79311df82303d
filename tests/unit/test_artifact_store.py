"""The artifact store on a local directory: put-if-absent, verified reads, and what it refuses."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbook.artifacts import ArtifactStore, object_path
from rollbook.errors import ArtifactError, ConfigError

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "with a space" / "artifacts"


@pytest.fixture
def store(root: Path) -> ArtifactStore:
    return ArtifactStore.open(root.as_uri())


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


async def test_what_is_put_can_be_got(store: ArtifactStore, root: Path) -> None:
    ref = await store.put(PNG, "image/png")
    assert (ref.sha256, ref.size_bytes, ref.media_type) == (hashlib.sha256(PNG).hexdigest(), len(PNG), "image/png")
    assert await store.get(ref.sha256) == PNG
    assert await store.verify(ref.sha256) == "ok"
    assert files(root) == [root / ref.sha256[:2] / ref.sha256]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(data=st.binary(max_size=2000))
async def test_any_bytes_come_back_as_they_were(store: ArtifactStore, data: bytes) -> None:
    ref = await store.put(data, "application/octet-stream")
    assert await store.get(ref.sha256) == data


async def test_the_same_bytes_are_stored_once(store: ArtifactStore, root: Path) -> None:
    first = await store.put(PNG, "image/png")
    inode = files(root)[0].stat().st_ino
    assert await store.put(PNG, "image/png") == first
    assert [path.stat().st_ino for path in files(root)] == [inode], "what is there is never written again"


async def test_writers_of_the_same_bytes_do_not_disturb_each_other(store: ArtifactStore, root: Path) -> None:
    large = PNG * 4000
    refs = await asyncio.gather(*(store.put(large, "image/png") for _ in range(16)))
    assert len(set(refs)) == 1
    assert await store.verify(refs[0].sha256) == "ok"
    assert len(files(root)) == 1, "no half-written file stays behind"


async def test_a_missing_artifact_is_an_error_with_its_digest(store: ArtifactStore) -> None:
    absent = "0" * 64
    assert await store.verify(absent) == "missing"
    with pytest.raises(ArtifactError, match=f"{absent} is missing"):
        await store.get(absent)


@pytest.mark.parametrize("damage", [b"", PNG[:-1], PNG + b"\0", b"other"])
async def test_a_damaged_artifact_is_never_handed_out(store: ArtifactStore, root: Path, damage: bytes) -> None:
    ref = await store.put(PNG, "image/png")
    files(root)[0].write_bytes(damage)
    assert await store.verify(ref.sha256) == "corrupt"
    with pytest.raises(ArtifactError, match="corrupt"):
        await store.get(ref.sha256)


@pytest.mark.parametrize("damage", [b"", PNG[:-1], PNG + b"\0"])
async def test_an_artifact_of_another_size_is_healed_by_the_next_put(
    store: ArtifactStore, root: Path, damage: bytes
) -> None:
    ref = await store.put(PNG, "image/png")
    files(root)[0].write_bytes(damage)
    assert await store.put(PNG, "image/png") == ref
    assert await store.get(ref.sha256) == PNG
    assert len(files(root)) == 1


async def test_a_fifo_is_a_missing_artifact_and_holds_nobody_up(store: ArtifactStore, root: Path) -> None:
    ref = await store.put(PNG, "image/png")
    (path,) = files(root)
    path.unlink()
    os.mkfifo(path)
    async with asyncio.timeout(20):
        assert await store.verify(ref.sha256) == "missing"
        with pytest.raises(ArtifactError, match="is missing"):
            await store.get(ref.sha256)
        await store.put(PNG, "image/png")
    assert await store.get(ref.sha256) == PNG, "the next put replaces it"


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n"])
async def test_only_digests_are_names(store: ArtifactStore, name: str) -> None:
    with pytest.raises(ArtifactError, match="not a SHA-256 digest"):
        object_path(name)
    with pytest.raises(ArtifactError, match="not a SHA-256 digest"):
        await store.get(name)


async def test_two_stores_on_one_directory_see_each_other(store: ArtifactStore, root: Path) -> None:
    ref = await store.put(PNG, "image/png")
    assert await ArtifactStore.open(root.as_uri()).get(ref.sha256) == PNG


@pytest.mark.parametrize("url", ["", "/var/lib/artifacts", "http://example.org/a", "artifacts"])
def test_a_place_that_is_no_store_names_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match="ROLLBOOK_ARTIFACT_URL"):
        ArtifactStore.open(url)
