"""What tests of sandboxes share: a Docker daemon with an image, made when the first test asks for it."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def docker_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of an image of this machine's own Python, registered and in a daemon that DOCKER_HOST names."""
    from sandboxes.images.importing import import_tar
    from sandboxes.images.registry import Registry
    from tests.sandboxes.docker import daemon, root_file_system

    with daemon.daemon(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.address())
        tar = root_file_system.write(tmp_path_factory.mktemp("image") / "root.tar")
        import_tar(Registry(), tar, "host", "1", "tests")
        tar.unlink()
        yield "host"
