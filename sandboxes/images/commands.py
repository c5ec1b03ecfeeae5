"""``python -m sandboxes images``: what the registry has, and how something gets in and out."""

import argparse
import getpass
import json
import sys
from pathlib import Path

from sandboxes.images.reference import ImageRefused
from sandboxes.images.registry import Image, Registry, default_folder
from sandboxes.interface import SandboxUnavailable

Subcommands = argparse._SubParsersAction


def add_commands(commands: "Subcommands[argparse.ArgumentParser]") -> None:
    images = commands.add_parser("images", help="which images sandboxes of Docker are made of")
    images.add_argument("--registry", type=Path, default=default_folder(), help="its folder (%(default)s)")
    verbs = images.add_subparsers(required=True, metavar="VERB")
    listed = verbs.add_parser("list", help="show them")
    listed.set_defaults(run=_run, verb=_list)
    for verb, run, about, place in (
        ("import", _import, "from a tar: of a root file system, or of `docker save`", "tar"),
        ("build", _build, "from a folder with a Dockerfile, without network", "folder"),
    ):
        parser = verbs.add_parser(verb, help=about)
        parser.add_argument(place, type=Path)
        parser.add_argument("--name", required=True)
        parser.add_argument("--tag")
        parser.add_argument("--owner", help="whose it is (you)")
        parser.set_defaults(run=_run, verb=run)
    for verb, run, about in (
        ("show", _show, "everything about one, as JSON"),
        ("remove", _remove, "forget one, and have the daemon remove it"),
    ):
        parser = verbs.add_parser(verb, help=about)
        parser.add_argument("image", help="NAME, NAME:TAG or sha256:...")
        parser.set_defaults(run=_run, verb=run)


def _run(options: argparse.Namespace) -> int:
    try:
        options.verb(Registry(options.registry), options)
    except (ImageRefused, SandboxUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _list(registry: Registry, options: argparse.Namespace) -> None:
    images = registry.images()
    if not images:
        print("no images yet: python -m sandboxes images import FILE.tar --name NAME")
        return
    rows = [("NAME", "TAGS", "DIGEST", "SIZE", "OWNER", "CREATED", "SOURCE"), *map(_row, images)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(field.ljust(width) for field, width in zip(row, widths, strict=True)).rstrip())


def _row(image: Image) -> tuple[str, ...]:
    size = f"{image.size_bytes / 2**20:.0f} MiB"
    created = f"{image.created:%Y-%m-%d %H:%M}"
    return image.name, ",".join(image.tags), image.digest[:19], size, image.owner, created, image.source


def _show(registry: Registry, options: argparse.Namespace) -> None:
    print(json.dumps(registry.resolve(options.image).model_dump(mode="json"), indent=2))


# Docker's SDK is imported where it is needed: it takes a tenth of a second.


def _import(registry: Registry, options: argparse.Namespace) -> None:
    from sandboxes.images.importing import import_tar

    _print_image(import_tar(registry, options.tar, options.name, options.tag, options.owner or getpass.getuser()))


def _build(registry: Registry, options: argparse.Namespace) -> None:
    from sandboxes.images.importing import build

    _print_image(build(registry, options.folder, options.name, options.tag, options.owner or getpass.getuser()))


def _remove(registry: Registry, options: argparse.Namespace) -> None:
    from sandboxes.images.importing import remove

    image = remove(registry, options.image)
    print(f"removed {image.reference} ({image.digest})")


def _print_image(image: Image) -> None:
    print(f"{image.reference} is {image.digest}")
