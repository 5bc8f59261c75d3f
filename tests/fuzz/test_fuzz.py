"""Damaged files for every reader: a few always, two minutes of them with the slow tests."""

import json
import re
from pathlib import Path

import pytest

from tests.fuzz import bombs, pool
from tests.fuzz.table import Row, damaged, fuzz, judge, lines, make

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc"),
]


def told(rows: list[Row]) -> str:
    return "\n".join([*lines(rows), *(odd for row in rows for odd in row.odd)])


def test_no_damaged_file_is_believed_or_raises_anything_but_a_value_error():
    rows = make(8)
    assert sum(row.counts.total() for row in rows) == 8 * len(rows)
    assert not sum(row.bad for row in rows), told(rows)


@pytest.mark.slow
def test_nor_are_many():
    rows = make(1000, seed=100_000, seconds=110)
    assert sum(row.counts.total() for row in rows) > 1000
    assert not sum(row.bad for row in rows), told(rows)


@pytest.mark.slow
def test_every_bomb_is_refused_within_300_megabytes():
    blown = bombs.blow(bombs.BOMBS)
    assert len(blown) == len(bombs.BOMBS)
    assert all(b.end == "clean" and b.peak < bombs.MOST for b in blown), "\n".join(bombs.lines(blown))


def cases(case: int) -> tuple[str, str]:
    """Ends of every kind."""
    if case == 1:
        while True:
            pass
    if case == 2:
        raise SystemExit
    if case == 3:
        held = bytearray(2 * 10**8)
        return "same", str(len(held))
    return "clean", ""


def test_the_pool_tells_a_hang_a_death_and_memory_and_goes_on():
    outcomes = list(pool.run(5, cases, seconds=2.0))
    assert [o.case for o in outcomes] == list(range(5))
    assert [o.kind for o in outcomes] == ["clean", "time", "killed", "same", "clean"]
    assert outcomes[3].peak > 1.9e8 > outcomes[4].peak


class Broken:
    """A reader that does what readers must not."""

    name, files, sealed = "broken", (b"0123456789",), True
    changes = ()

    @staticmethod
    def read(path: Path) -> object:
        data = path.read_bytes()
        if data[:1] == b"K":
            raise KeyError("x")
        if data[:1] == b"V":
            raise ValueError("no name of the file")
        if data[:1] == b"N":
            raise ValueError(f"{path}: told")
        return data.strip()

    @staticmethod
    def sound(found: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("data", "kind"), [(b"K", "raw"), (b"V", "raw"), (b"N", "clean"), (b"9", "silent and wrong"), (b" x ", "same")]
)
def test_the_judge_tells_what_should_not_be(tmp_path: Path, data: bytes, kind: str):
    from tests.fuzz.readers import digest

    assert judge(Broken, data, digest(b"x"), tmp_path / "victim.file")[0] == kind  # type: ignore[arg-type]


def test_a_case_can_be_made_again():
    class Reader:
        name, files = "a", (b"0123456789" * 20,)
        changes = (lambda data, random: data[: random.randrange(len(data))],)

    assert damaged(Reader, 7) == damaged(Reader, 7)  # type: ignore[arg-type]
    assert damaged(Reader, 7) != damaged(Reader, 8)  # type: ignore[arg-type]


def test_the_table_has_a_line_for_all(tmp_path: Path):
    rows = [Row("a", 0), Row("b", 0)]
    rows[0].counts["clean"] = 3
    rows[1].counts["raw"] = 2
    assert re.search(r"\| all \| 5 \| 3 \| 0 \| 0 \| 2 \|", lines(rows)[-1])
    assert json.loads(json.dumps(rows[1].to_dict()))["counts"] == {"raw": 2}
    assert not list(fuzz([], 1, seed=0, folder=tmp_path))
