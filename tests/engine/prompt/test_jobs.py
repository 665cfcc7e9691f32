"""The order of the tokenizer thread's jobs: users take turns, and short jobs do not wait for all long ones."""

import gc
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from car_base.ipc.codec import packed_tokens
from car_base.ipc.frames import FromEngine, TokenIds, Tokenize
from car_base.ipc.turns import TurnAccount, Turns
from car_engine.batching.reuse.expected import Expected
from car_engine.prompt.job_progress import JobProgress
from car_engine.prompt.jobs import Job, Jobs, QueuedJob
from car_engine.prompt.preparer import TokenizerThread
from car_protocol.limits import MAX_CONNECTIONS

HONEST, FIRST, SECOND = 1, 2, 3
LONG_S, SHORT_S = 5.0, 0.001


def queued(key: int, uid: int, text: str = "", names: tuple[str, ...] = ()) -> QueuedJob:
    return QueuedJob(Tokenize(key, text, False, False, owner=uid), 9, (uid, *names))


def add(turns: Turns[QueuedJob], job: QueuedJob) -> None:
    """Queue a job as its owner's."""
    turns.add(job.path, job)


def take(turns: Turns[QueuedJob], seconds: dict[int, float]) -> int:
    """Do the job whose turn it is; return its user."""
    path = turns.take().path
    uid = int(str(path[0]))
    turns.charge(path, seconds[uid])
    return uid


def test_a_short_job_waits_for_the_one_that_runs_and_not_for_the_long_ones_before_it() -> None:
    jobs, now, done = Jobs(), 0.0, list[tuple[int, float]]()
    took = {"long": LONG_S, "short": SHORT_S}

    def answer(job: Job) -> FromEngine:
        nonlocal now
        assert isinstance(job, Tokenize)
        if len(done) == 2:
            jobs.put(queued(99, HONEST, "short"))
        now += took[job.text or ""]
        done.append((job.owner, now))
        return TokenIds(job.key, packed_tokens([]))

    for key in range(20):
        jobs.put(queued(key, (FIRST, SECOND)[key % 2], "long"))
    thread = TokenizerThread(
        answer, jobs, JobProgress(lambda _: None), lambda _: None, lambda _: None, Expected(), lambda: now
    )
    for _ in range(4):
        thread.turn()
    assert [uid for uid, _ in done] == [FIRST, SECOND, FIRST, HONEST]
    assert done[-1][1] == 3 * LONG_S + SHORT_S


def test_a_user_of_long_jobs_gets_its_turn_beside_short_ones_without_end() -> None:
    turns = Turns[QueuedJob]()
    for key in range(1000):
        add(turns, queued(key, HONEST))
    for key in range(1000, 1010):
        add(turns, queued(key, FIRST))
    order = [take(turns, {HONEST: SHORT_S, FIRST: 0.1}) for _ in range(1000)]
    # It took 0.1 s in its first turn, and has more of them once the other took as much and the bound.
    assert order.count(FIRST) >= 4


def test_a_user_saves_no_turns_while_it_is_away() -> None:
    turns = Turns[QueuedJob]()
    add(turns, queued(0, FIRST))
    take(turns, {FIRST: SHORT_S})
    for key in range(20):
        add(turns, queued(key, HONEST))
    for _ in range(10):
        take(turns, {HONEST: 1.0})
    for key in range(20, 40):
        add(turns, queued(key, FIRST))
    assert [take(turns, {HONEST: 1.0, FIRST: 1.0}) for _ in range(6)].count(HONEST) >= 2


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 5)), max_size=60))
def test_every_job_has_its_turn_once_in_the_order_of_its_user(jobs: list[tuple[int, float]]) -> None:
    turns = Turns[QueuedJob]()
    for key, (uid, _) in enumerate(jobs):
        add(turns, queued(key, uid))
    order = []
    while not turns.empty:
        order.append(turns.take())
        assert order[-1].job is not None
        turns.charge(order[-1].path, jobs[order[-1].job.key][1])
    by_user = {uid: [each.job.key for each in order if each.job and each.path == (uid,)] for uid in range(5)}
    assert Counter(each.path for each in order) == Counter((uid,) for uid, _ in jobs)
    assert by_user == {uid: [key for key, job in enumerate(jobs) if job[0] == uid] for uid in range(5)}


@given(st.lists(st.floats(0.3, 5), min_size=1, max_size=4), st.integers(1, 20))
def test_between_two_short_jobs_of_a_user_each_other_user_has_one_long_job_at_most(
    seconds: list[float], shorts: int
) -> None:
    turns = Turns[QueuedJob]()
    took = {HONEST: SHORT_S} | dict(enumerate(seconds, 10))
    for uid in took:
        for key in range(50):
            add(turns, queued(key, uid))
    since = Counter[int]()
    for _ in range(shorts):
        while (uid := take(turns, took)) != HONEST:
            since[uid] += 1
            assert since[uid] == 1
        since.clear()


def test_the_text_of_a_forgotten_job_is_freed_while_it_waits() -> None:
    jobs, job = Jobs(), queued(1, FIRST, "a" * 100)
    jobs.put(job)
    jobs.forget(1)
    assert job.job is None


def test_a_tenant_waits_for_one_job_of_another_and_not_for_all_of_them() -> None:
    turns = Turns[QueuedJob]()
    for key in range(20):
        add(turns, queued(key, 1, names=("9", "a", f"label {key}")))
    turns.charge(turns.take().path, LONG_S)
    add(turns, queued(99, 1, names=("9", "b", "")))
    assert turns.take().path == (1, "9", "b", "")


@given(st.lists(st.tuples(*[st.sampled_from("ab")] * 3), min_size=1, max_size=60), st.floats(0.3, 5))
def test_names_of_a_level_with_jobs_get_equal_time(names: list[tuple[str, str, str]], seconds: float) -> None:
    turns, left = Turns[QueuedJob](), Counter[str]()
    for key, each in enumerate(names):
        add(turns, queued(key, 1, names=each))
        left[each[0]] += 1
    served = Counter[str]()
    while len(+left) > 1:
        path = turns.take().path
        turns.charge(path, seconds)
        process = str(path[1])
        left[process] -= 1
        served[process] += 1
        assert abs(served["a"] - served["b"]) <= 1


def test_fresh_names_without_end_overtake_a_known_name_for_a_while_only() -> None:
    turns, known = Turns[QueuedJob](), ("9", "a", "known")
    for key in (0, 1):
        add(turns, queued(key, 1, names=known))
    turns.charge(turns.take().path, 1.0)
    served = []
    for key in range(2, 50):
        add(turns, queued(key, 1, names=("9", "a", f"fresh {key}")))
        if key > 5:
            served.append(turns.take().path)
            turns.charge(served[-1], 1.0)
    assert (1, *known) in served[:20]


def test_names_without_end_leave_a_bounded_memory() -> None:
    turns = Turns[QueuedJob]()
    for key in range(3 * MAX_CONNECTIONS):
        add(turns, queued(key, key, names=(str(key), "", "")))
        turns.charge(turns.take().path, SHORT_S)
    gc.collect()
    assert sum(isinstance(each, TurnAccount) for each in gc.get_objects()) < 1.1 * MAX_CONNECTIONS
