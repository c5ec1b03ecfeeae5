"""A Docker daemon with an image of this machine's own Python, for tests of tasks in containers."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def docker_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from sandboxes.images.importing import import_tar
    from sandboxes.images.registry import Registry
    from tests.sandboxes.docker import daemon, root_file_system

    with daemon.daemon(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.address())
        tar = root_file_system.write(tmp_path_factory.mktemp("image") / "root.tar")
        import_tar(Registry(), tar, "host", "1", "tests")
        tar.unlink()
        yield "host:1"
