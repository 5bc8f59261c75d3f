"""What is left of work that was killed."""

from docs.tables.results import caption, read, rows, table


@table
def torture() -> list[str]:
    """Kills of every kind of job, with what was lost and what was left behind."""
    found = read("torture", "../tests/torture.py")
    keys = ("kills", "by_clock", "chains", "in_writing")
    jobs = {
        name: [*(job[key] for key in keys), *(len(job[key]) for key in ("lost", "left"))]
        for name, job in found["jobs"].items()
    }
    body = [[name, *values] for name, values in jobs.items()]
    body.append(["all", *(sum(values) for values in zip(*jobs.values(), strict=True))])
    head = ["job", "kills", "by the clock", "jobs killed one to three times", "in the middle of a run or a write"]
    return [*rows([*head, "files lost or other", "files left behind"], body), *caption(found["about"])]
