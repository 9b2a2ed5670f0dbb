"""Environment dumps: ``env``, ``export``/``declare -x``, shell scripts, ``docker -e``, env files, YAML env lists,
``nccl.conf``.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from atoll.readers.source import Source
from atoll.readers.text_stream import Line, text_lines


class EnvironmentVariable(msgspec.Struct, frozen=True):
    """``name`` is set to ``value`` (quotes removed, nothing expanded). ``form``: ``env``, ``export``, ``docker``,
    ``yaml`` or ``json``. ``rank`` and ``host`` where the line itself is prefixed with them."""

    name: str
    value: str
    source: Source
    form: str = "env"
    host: str = ""
    rank: int | None = None


MAX_VALUE: Final = 16_384

_ASSIGNMENT: Final = re.compile(
    r"(export\s+|declare\s+-[a-z]*x[a-z]*\s+|typeset\s+-x\s+|set\s+-x\s+)?([A-Za-z_]"
    r"[A-Za-z0-9_]{0,127})=(.*)",
    re.DOTALL,
)
_SETENV: Final = re.compile(r"setenv\s+([A-Za-z_][A-Za-z0-9_]{0,127})\s+(.*)")
_DOCKER: Final = re.compile(
    r"(?:^|\s)(?:-e|--env|-x|-genv)[ =]([A-Za-z_][A-Za-z0-9_]{0,127})=("
    r"(?:\"[^\"]*\"|'[^']*'|\\.|[^\s\\\"'])*)"
)
_DOCKERFILE: Final = re.compile(r"ENV\s+([A-Za-z_][A-Za-z0-9_]{0,127})(?:=|\s+)(.*)")
_INLINE: Final = re.compile(
    r"(?:^|\s)((?:NCCL|RCCL|TORCH_NCCL|UCX|FI|CUDA|SLURM|OMPI|GLOO|TORCH)_[A-Z0-9_]{1,100})=("
    r"(?:\"[^\"]*\"|'[^']*'|[^\s\"';])*)"
)
_YAML_NAME: Final = re.compile(r"\s*-?\s*name:\s*['\"]?([A-Za-z_][A-Za-z0-9_]{0,127})['\"]?\s*(?:#.*)?")
_YAML_VALUE: Final = re.compile(r"\s*-?\s*value:\s*(.*)")
_YAML_FLOW: Final = re.compile(
    r"\s*-\s*\{\s*name:\s*['\"]?([A-Za-z_][A-Za-z0-9_]{0,127})['\"]?\s*,\s*value:\s*(.*?)\s*\}\s*(?:#.*)?"
)
_YAML_MAP: Final = re.compile(r"\s+-?\s*([A-Z_][A-Z0-9_]{0,127}):\s+(\S.*)")
_YAML_HEAD: Final = re.compile(r"\s*-?\s*(?:env|environment|environ|envVars|env_vars|variables|data):\s*")
_JSON_STRING: Final = re.compile(
    r'\s*"([A-Za-z_][A-Za-z0-9_]{0,127})(?:=((?:[^"\\]|\\.)*)"|"\s*:\s*"?((?:[^"\\,]|\\.)*)"?)\s*,?\s*'
)
_MAX_VARIABLES: Final = 1_000_000


class EnvironmentReader:
    """A line-oriented reader; ``variables`` holds every assignment, in order (of a name the last wins, as in a shell).

    ``everything`` False, for a log that is no environment dump, keeps the assignments only that look like a program's
    echo: whole lines ``NAME=value`` or ``export NAME=value`` of the communication libraries, PyTorch, CUDA and Slurm.
    """

    def __init__(self, file: str, *, everything: bool = True) -> None:
        self.file = file
        self.everything = everything
        self._variables: list[EnvironmentVariable] = []
        self._name: tuple[str, Line] | None = None
        self._in_map: int | None = None

    @property
    def variables(self) -> tuple[EnvironmentVariable, ...]:
        return tuple(self._variables)

    def feed(self, line: Line) -> None:
        text = line.text
        if "=" not in text and ":" not in text and "setenv" not in text and "ENV" not in text and "-x" not in text:
            return
        if len(self._variables) >= _MAX_VARIABLES or len(text) > 8 * MAX_VALUE:
            return
        if not self.everything:
            match = _ASSIGNMENT.fullmatch(text.strip())
            if match is not None and _is_ours(match[2]) and " " not in match[2]:
                self._add(match[2], _unquote(match[3]), "export" if match[1] else "env", line)
            return
        self._any_form(text, line)

    def _any_form(self, text: str, line: Line) -> None:
        if self._yaml(text, line):
            return
        stripped = text.strip()
        if stripped.startswith("#"):
            return
        stripped = stripped.removesuffix("\\").rstrip()
        if (match := _ASSIGNMENT.fullmatch(stripped)) is not None:
            if match[1]:
                # One export may set several: export A=1 B=2.
                for name, value in _words(stripped[match.end(1) :]):
                    self._add(name, value, "export", line)
            elif _is_command(match[3]):
                for name, value in _INLINE.findall(stripped):
                    self._add(name, _unquote(value), "env", line)
            else:
                self._add(match[2], _unquote(match[3]), "env", line)
        elif (match := _SETENV.fullmatch(stripped)) is not None or (
            match := _DOCKERFILE.fullmatch(stripped)
        ) is not None:
            self._add(match[1], _unquote(match[2]), "export", line)
        elif (match := _JSON_STRING.fullmatch(text)) is not None and match[3] not in ("[", "{", "[]", "{}"):
            self._add(match[1], (match[2] if match[2] is not None else match[3]).replace('\\"', '"'), "json", line)
        else:
            found = [(name, value) for name, value in _DOCKER.findall(stripped) if value]
            for name, value in found:
                self._add(name, _unquote(value), "docker", line)
            if not found:
                for name, value in _INLINE.findall(stripped):
                    self._add(name, _unquote(value), "env", line)

    def _yaml(self, text: str, line: Line) -> bool:
        if (match := _YAML_FLOW.fullmatch(text)) is not None:
            self._add(match[1], _unquote(match[2]), "yaml", line)
            return True
        if (match := _YAML_NAME.fullmatch(text)) is not None:
            self._name = (match[1], line)
            return True
        if self._name is not None and (match := _YAML_VALUE.fullmatch(text)) is not None:
            self._add(self._name[0], _unquote(_without_comment(match[1])), "yaml", line)
            self._name = None
            return True
        self._name = None
        indent = len(text) - len(text.lstrip())
        if _YAML_HEAD.fullmatch(text):
            self._in_map = indent
            return True
        if self._in_map is not None and text.strip():
            if indent > self._in_map and (match := _YAML_MAP.fullmatch(text)) is not None:
                self._add(match[1], _unquote(_without_comment(match[2])), "yaml", line)
                return True
            if indent <= self._in_map:
                self._in_map = None
        return False

    def _add(self, name: str, value: str, form: str, line: Line) -> None:
        self._variables.append(
            EnvironmentVariable(
                name, value[:MAX_VALUE], line.source(self.file), form, line.launcher.host, line.launcher.rank
            )
        )


def read_environment(text: str | bytes, file: str) -> tuple[EnvironmentVariable, ...]:
    """Every variable in ``text``, in order; ``nccl.conf`` and shell scripts too. ``env -0`` output is split at NULs."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if b"\0" in data and b"\n" not in data.partition(b"\0")[0]:
        data = data.replace(b"\n", b" ").replace(b"\0", b"\n")
    reader = EnvironmentReader(file)
    for line in text_lines(data):
        reader.feed(line)
    return reader.variables


def _is_ours(name: str) -> bool:
    return name.startswith(
        (
            "NCCL_",
            "RCCL_",
            "TORCH_",
            "CUDA_",
            "SLURM_",
            "OMPI_",
            "UCX_",
            "FI_",
            "GLOO_",
            "HSA_",
            "HIP_",
            "ROCR_",
            "MASTER_",
        )
    ) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LD_LIBRARY_PATH", "LD_PRELOAD")


def _is_command(value: str) -> bool:
    """``NAME=1 OTHER=2 program``: an assignment in front of a command, not one whose value has spaces."""
    return (
        " " in value and not value.startswith(("'", '"')) and _INLINE.search(" " + value.partition(" ")[2]) is not None
    )


def _words(text: str) -> list[tuple[str, str]]:
    """The NAME=value words of one export, quotes removed; a value without its end quote goes to the end."""
    found: list[tuple[str, str]] = []
    at = 0
    while (match := _WORD.match(text, at)) is not None:
        found.append((match[1], _unquote(match[2])))
        at = match.end()
    return found


_WORD: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]{0,127})=((?:\"(?:[^\"\\]|\\.)*\"?|'[^']*'?|\\.|[^\s\\\"';])*)")


def _unquote(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1].replace('\\"', '"') if value[0] == '"' else value[1:-1]
    if value.startswith("$'") and value.endswith("'"):
        return value[2:-1]
    return value


def _without_comment(value: str) -> str:
    """A YAML scalar without a trailing comment, which needs a space before its ``#``."""
    if value[:1] in "'\"" and value:
        end = value.find(value[0], 1)
        return value[: end + 1] if end > 0 else value
    return value.partition(" #")[0].rstrip()
