"""Options that several scenes have, and their types."""

from pathlib import Path

from .model import Context, Misused, OptionGroup


def numbers(text: str) -> list[int]:
    """Whole numbers of a comma-separated list; empty parts do not count."""
    return [int(part) for part in text.split(",") if part]


def add_binary(group: OptionGroup) -> None:
    """`--binary FILE`, for `binary`."""
    group.add_argument(
        "--binary", type=Path, metavar="FILE", help="measure this tidegate; target/release/tidegate"
    )


def binary(context: Context) -> Path:
    """The `tidegate` to measure; `Misused` if the file is missing."""
    file: Path = context.options.binary or context.tidegate
    if not file.exists():
        raise Misused(f"--binary: {file} is missing: cargo build --release -p tidegate")
    return file
