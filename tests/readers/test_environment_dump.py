"""Environment variables in the forms in which people send them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.readers.environment import EnvironmentReader, read_environment
from atoll.readers.text_stream import text_lines


def found(text: str) -> list[tuple[str, str, str]]:
    return [(variable.name, variable.value, variable.form) for variable in read_environment(text, "env")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", "env")]),
        ("NCCL_IB_HCA=^mlx5_0:1,mlx5_1", [("NCCL_IB_HCA", "^mlx5_0:1,mlx5_1", "env")]),
        ("EMPTY=", [("EMPTY", "", "env")]),
        ("VALUE=a b c", [("VALUE", "a b c", "env")]),
        ('export NCCL_SOCKET_IFNAME="eth0,eth1" NCCL_NET=\'IB\'',
         [("NCCL_SOCKET_IFNAME", "eth0,eth1", "export"), ("NCCL_NET", "IB", "export")]),
        ('declare -x NCCL_IB_TIMEOUT="22"', [("NCCL_IB_TIMEOUT", "22", "export")]),
        ("setenv NCCL_ALGO Ring", [("NCCL_ALGO", "Ring", "export")]),
        ("NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 torchrun --nproc 8 train.py",
         [("NCCL_P2P_DISABLE", "1", "env"), ("NCCL_SHM_DISABLE", "1", "env")]),
        ("docker run -e NCCL_NET=Socket --env 'X' --env NCCL_X=\"a b\" -e NOVALUE img",
         [("NCCL_NET", "Socket", "docker"), ("NCCL_X", "a b", "docker")]),
        ("mpirun -x NCCL_DEBUG=WARN -x LD_LIBRARY_PATH -np 16 ./a", [("NCCL_DEBUG", "WARN", "docker")]),
        ("ENV NCCL_DF=1", [("NCCL_DF", "1", "export")]),
        ("  env:\n  - name: NCCL_PROTO\n    value: \"LL\"\n  - name: FROM\n    valueFrom:\n",
         [("NCCL_PROTO", "LL", "yaml")]),
        ("env:\n- { name: NCCL_ALGO, value: Tree }\n", [("NCCL_ALGO", "Tree", "yaml")]),
        ("    environment:\n      NCCL_A: 5 # five\n      NCCL_B: \"x # y\"\n    image: foo\n",
         [("NCCL_A", "5", "yaml"), ("NCCL_B", "x # y", "yaml")]),
        ('"Env": [\n  "NCCL_JSON=1",\n  "NCCL_J2": "3",\n]', [("NCCL_JSON", "1", "json"), ("NCCL_J2", "3", "json")]),
        ("# NCCL_COMMENT=1", []),
        ("NCCL_A=1\0NCCL_B=two\nlines\0", [("NCCL_A", "1", "env"), ("NCCL_B", "two lines", "env")]),
        (" 3: NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO", "env")]),
    ],
)  # fmt: skip
def test_form(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert found(text) == expected


def test_every_assignment_is_kept_with_its_line_and_rank() -> None:
    variables = read_environment(" 3: NCCL_DEBUG=INFO\n 4: NCCL_DEBUG=WARN\n", "env")
    assert [(variable.value, variable.rank, variable.source.line) for variable in variables] == [
        ("INFO", 3, 1),
        ("WARN", 4, 2),
    ]


def test_in_a_log_only_whole_lines_of_known_families_count() -> None:
    reader = EnvironmentReader("job.log", everything=False)
    text = "loss=3.2\nNCCL_DEBUG=INFO\nx=1 NCCL_IB_HCA=mlx5\nexport TORCH_NCCL_BLOCKING_WAIT=1\nHOME=/root\n"
    for line in text_lines(text):
        reader.feed(line)
    assert [(variable.name, variable.value) for variable in reader.variables] == [
        ("NCCL_DEBUG", "INFO"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1"),
    ]


NAMES = st.from_regex(r"NCCL_[A-Z][A-Z0-9_]{0,20}", fullmatch=True)
VALUES = st.from_regex(r"[A-Za-z0-9/^,.:+-]{1,30}", fullmatch=True)


@given(
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=8), st.sampled_from(["env", "export", "docker", "yaml", "json"])
)
def test_what_is_written_is_read(variables: dict[str, str], form: str) -> None:
    line = {
        "env": "{}={}",
        "export": 'export {}="{}"',
        "docker": "  -e {}={} \\",
        "yaml": "  - name: {}\n    value: '{}'",
        "json": '  "{}={}",',
    }[form]
    text = "\n".join(line.format(*item) for item in variables.items()) + "\n"
    assert found(text) == [(name, value, form) for name, value in variables.items()]
