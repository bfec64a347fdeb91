"""Which parts of a file are the model's inputs, and which the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from howsure.data.reading.bounded import Limits
from howsure.data.reading.prepared import Preparation


@dataclass(frozen=True)
class Group:
    """One input of the model.

    Attributes:
        argument: The model's argument that takes it; "" for the only one.
        names: Keys of arrays, or columns of a table.
    """

    argument: str
    names: tuple[str, ...]

    @staticmethod
    def parsed(text: str) -> Group:
        """The group that `a,b,c` or `argument=a,b,c` names."""
        argument, equals, rest = text.rpartition("=")
        names = tuple(name.strip() for name in rest.split(","))
        if not all(names) or (equals and not argument.strip()):
            raise ValueError(
                f"`--inputs {text}` is not understood; give names separated by commas, or "
                "`argument=names` for a model with several inputs."
            )
        return Group(argument.strip(), names)


@dataclass(frozen=True)
class Choice:
    """What the user says about a data file.

    Attributes:
        inputs: The model's inputs; empty for what the file's kind suggests.
        target: Key, columns or file of the target; `None` for what the file's kind suggests.
        preparation: What is done to the numbers before the model sees them.
        image_size: Height and width to which images are brought; `None` to leave them.
        gray: Read images as gray instead of RGB.
        limits: How much a file may claim to hold.
    """

    inputs: tuple[Group, ...] = ()
    target: str | None = None
    preparation: Preparation = field(default_factory=Preparation)
    image_size: tuple[int, int] | None = None
    gray: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Several inputs must have a name each."""
        arguments = [group.argument for group in self.inputs]
        if len(arguments) > 1 and (not all(arguments) or len(set(arguments)) < len(arguments)):
            raise ValueError(
                "Several `--inputs` need the names of the model's arguments, each its own: "
                "`--inputs image=camera --inputs motion=imu`."
            )

    def groups(self, names: Sequence[str], what: str) -> tuple[Group, ...]:
        """The inputs, each of whose names must be among `names`."""
        for group in self.inputs:
            check_names(group.names, names, what)
        return self.inputs


def check_names(asked: Sequence[str], found: Sequence[str], what: str) -> None:
    """An error that names what is missing, and what there is."""
    missing = [name for name in asked if name not in found]
    if missing:
        raise ValueError(f"{what} has no `{missing[0]}`; it has {_listed(found)}.")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:20]) or "nothing"
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")
