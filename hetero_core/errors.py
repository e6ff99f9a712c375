"""The errors of hetero: a single tree, each also the builtin exception that a caller would expect.

Every message names the failed action, the object, the expected and the actual value, and the next step for the user.
Imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class HeteroError(Exception):
    """The base class of every error that hetero raises on purpose."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument; a message is for reading.
        return self.args[0] if len(self.args) == 1 and isinstance(self.args[0], str) else super().__str__()


class NetworkReadError(HeteroError, ValueError):
    """The bytes cannot be read as an ONNX model."""


class NetworkNotFoundError(NetworkReadError, FileNotFoundError):
    """The model file, or a file of its weights, does not exist."""


class ReadLimitError(NetworkReadError):
    """Reading the model would take more nodes, memory or time than `ReadLimits` allow; the message names the limit."""


class InvalidNetworkError(HeteroError, ValueError):
    """The model was read but is not a valid network: cyclic, untyped, dangling or ambiguous."""


class AffinityError(HeteroError, ValueError):
    """A pin matches no node, contradicts a second pin, or names a device outside the list."""


class DeviceNotFoundError(HeteroError, KeyError):
    """No plugin announces the device, or the device has no such id."""


class DeviceUnavailableError(HeteroError, RuntimeError):
    """The plugin is installed but cannot work here; the message says why and names the cure."""


class DeviceTimeoutError(DeviceUnavailableError, TimeoutError):
    """A plugin has not answered in time, and may never answer; the message names the plugin and the call."""


class DeviceCrashedError(HeteroError, RuntimeError):
    """The process of a device has ended; the message names the device, the signal or exit status, and the interrupted operation."""


class PluginError(HeteroError, RuntimeError):
    """A plugin broke the contract; the message names its distribution and version."""


class NotImplementedByDeviceError(HeteroError, NotImplementedError):
    """The device does not implement an optional hook."""


class DeviceNameError(HeteroError, ValueError):
    """A device string cannot be parsed, or its arguments are missing."""


class ConfigKeyError(HeteroError, KeyError):
    """The device declares no such configuration key."""


class ConfigValueError(HeteroError, ValueError):
    """The value of a configuration key is not of its type or not among its choices."""


class MetricNotFoundError(HeteroError, KeyError):
    """The device has no such metric."""


class UnsupportedNodesError(HeteroError, NotImplementedError):
    """No device takes some nodes. `refusals` maps each of them to the reason of each device; `cure` is advice in a sentence."""

    def __init__(self, message: str, refusals: dict[str, dict[str, str]], cure: str = "") -> None:
        super().__init__(message, refusals, cure)  # all of them, for pickles
        self.refusals = refusals
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.args[0]}\n{self.cure}" if self.cure else str(self.args[0])


class LoadError(HeteroError, RuntimeError):
    """A device failed to load a part of a network that it had taken; the cause is chained."""


class ExtensionError(HeteroError, ValueError):
    """A custom operator is incomplete, is refused by the device, or exists already."""


class InputNameError(HeteroError, KeyError):
    """An input or output of this name does not exist, or an input is missing."""


class InputShapeError(HeteroError, ValueError):
    """The network does not take an array of this shape."""


class InputTypeError(HeteroError, TypeError):
    """The network takes a different element type than the array's, or the value is not an array."""


class BlobError(HeteroError, ValueError):
    """A blob cannot be used."""


class BlobDamagedError(BlobError):
    """The bytes are not a complete, unchanged blob."""


class BlobMismatchError(BlobError):
    """The blob is whole but of another format, device, plugin version, network or configuration."""


class UntrustedBlobError(BlobError, PermissionError):
    """The blob contains code, and the caller has not said that it is trusted."""


class PrivateFolderError(HeteroError, PermissionError):
    """A folder that must be private is open to further users, or cannot be created."""


class DeadlineExceededError(HeteroError, TimeoutError):
    """A load, a query or a run has taken longer than DEADLINE allows."""


class MemoryLimitError(HeteroError, MemoryError):
    """A network, or a run of it, needs more bytes than MEMORY_LIMIT allows."""


class DeviceMemoryError(HeteroError, MemoryError):
    """A device has too little free memory for a network or a run of it; `needed` and `free` are bytes, None if unknown."""

    def __init__(self, message: str, *, needed: int | None = None, free: int | None = None) -> None:
        super().__init__(message)
        self.needed = needed
        self.free = free


class InferenceError(HeteroError, RuntimeError):
    """A device failed while it ran a network; the cause is chained."""


class InternalError(HeteroError, RuntimeError):
    """Code of hetero or of a plugin failed in an unforeseen way; the message names the node, and the cause is chained. Report it."""


class RequestBusyError(HeteroError, RuntimeError):
    """The request is running; wait for it or use a different request."""


class RequestCancelledError(HeteroError, RuntimeError):
    """The request was cancelled before it ended."""


class ClosedError(HeteroError, RuntimeError):
    """The object was closed before."""


class WrongPlanWarning(UserWarning):
    """A device has found its fast way to be wrong for a network; it continues in another way, and the message says how to report it."""


class NetworkDeclarationWarning(UserWarning):
    """A model declares another shape for a value than inference computes, which is used. The warning comes once for each value."""


def word_missing(owner: str, kind: str, name: object, known: Iterable[str]) -> str:
    """Returns "X has no KIND 'name'", with the near misses and all the names there are."""
    names = list(known)
    return f"{owner} has no {kind} '{name}'{suggest(str(name), names) or ';'} its {kind}s are {enumerate_choices(names)}"


def suggest(wrong: str, choices: Iterable[str]) -> str:
    """Returns ", did you mean 'X'?" for the nearest of `choices`, or an empty text without a near choice."""
    near = [f"'{name}'" for name in find_near(wrong, choices)]
    return f", did you mean {' or '.join(near)}?" if near else ""


def find_near(wrong: str, choices: Iterable[str]) -> list[str]:
    """Returns the at most three of `choices` that are most similar to a word, in any case, the nearest first."""
    folded = {choice.casefold(): choice for choice in sorted(set(choices))}
    import difflib  # heavy beside the rest of this file, which everything imports

    return [folded[name] for name in difflib.get_close_matches(wrong.casefold(), list(folded), n=3, cutoff=0.6)]


def enumerate_choices(choices: Iterable[str]) -> str:
    """Returns the choices sorted and joined by commas, or "none" if there are no choices."""
    return ", ".join(sorted(set(choices))) or "none"


def refuse_pickling(subject: str, cure: str) -> NoReturn:
    """Raises TypeError with a substitute for pickling or copying an object that is bound to its process; for `__reduce__`."""
    raise TypeError(f"{subject} belongs to one process and cannot be pickled or copied; {cure}")


BLAME = "raised by plugin "
"""Begins the note of an error that left a plugin."""


def own_errors(action: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Returns a decorator under which a function raises errors of hetero alone; `action` begins the message: "loading a network".

    Any other error is a fault of ours or of a plugin. It becomes an InternalError with the notes of its cause, which name the node. A
    warning that the program turns into an error is raised as it is.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            try:
                return function(*arguments, **named)
            except (HeteroError, Warning):
                raise
            except Exception as error:  # any exception of a defect is reported as a defect
                notes = getattr(error, "__notes__", ())
                text = "".join((f"{type(error).__name__}: {error}", *(f"; {note}" for note in notes)))
                if any(note.startswith(BLAME) for note in notes):
                    where, advice = "in a plugin", "The plugin is at fault; please report it to its author,"
                else:
                    where, advice = "in a way that nobody foresaw", "The model may be damaged; please report it"
                raise InternalError(f"{action} failed {where}: {text}. {advice} with the model and the error below") from error

        return call

    return decorate
