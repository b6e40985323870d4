"""The future of each save: its own result, callbacks, failures that are raised once."""

import asyncio
import concurrent.futures
import os
import select
import subprocess
import sys
import textwrap
import threading
import time

import numpy
import pytest
import straightway


def test_each_save_has_a_future_with_its_own_result(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        futures = [checkpointer.save(step, {"t": numpy.full(100 * step, step)}) for step in (1, 2, 3)]
        assert all(isinstance(future, concurrent.futures.Future) for future in futures)
        assert [future.result(30).step for future in futures] == [1, 2, 3]
        assert futures[1].result().bytes < futures[2].result().bytes and futures[0].exception() is None
        assert [repr(future) for future in futures] == [f"<SaveFuture: step {step}, saved>" for step in (1, 2, 3)]
        assert not futures[0].cancel() and checkpointer.wait().step == 3 and checkpointer.wait() is None


def test_a_future_is_done_without_a_call_and_its_callbacks_may_save(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        later = []

        def follow(future):
            later.append(checkpointer.save(future.result().step + 1, {"n": 2}))
            ended.set()

        ended = threading.Event()
        first = checkpointer.save(1, {"n": 1})
        first.add_done_callback(follow)
        assert ended.wait(30) and concurrent.futures.wait([first, *later], 30).not_done == set()

        async def waited():
            return await asyncio.wrap_future(checkpointer.save(3, {"n": 3}))

        assert asyncio.run(waited()).step == 3
    assert checkpointer.steps() == [1, 2, 3]


def failing(folder):
    """A checkpointer whose saves fail: the second rank never comes."""
    return straightway.Checkpointer(folder, rank=0, world_size=2, run="r", timeout_s=0.3)


def test_a_failure_is_raised_by_the_future_or_else_by_the_next_call(tmp_path):
    with failing(tmp_path) as checkpointer:
        future = checkpointer.save(1, {"n": 1})
        with pytest.raises(OSError, match="nothing came from 1 of 2 ranks"):
            future.result()
        assert future.exception() is not None and repr(future) == "<SaveFuture: step 1, failed>"
        # It was told, so nothing else raises it.
        assert checkpointer.wait() is None
        checkpointer.save(2, {"n": 2})
        with pytest.raises(OSError, match="nothing came"):
            checkpointer.save(3, {"n": 3})
        with pytest.raises(OSError, match="nothing came"):
            checkpointer.save(4, {"n": 4}, async_=False)
        future = checkpointer.save(5, {"n": 5})
        with pytest.raises(OSError, match="nothing came"):
            checkpointer.wait()
        assert checkpointer.wait() is None and future.is_told
    assert checkpointer.steps() == []


def test_a_failure_of_the_last_save_is_shown_when_the_program_ends(tmp_path):
    code = """
        import sys, straightway
        checkpointer = straightway.Checkpointer(sys.argv[1], rank=0, world_size=2, run="r", timeout_s=0.2)
        future = checkpointer.save(1, {"n": 1})
        if sys.argv[2] == "told":
            future.exception()
    """
    for told in ("told", "untold"):
        command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / told), told]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ("nothing came from 1 of 2 ranks" in done.stderr) == (told == "untold"), done.stderr


def test_saves_of_several_threads_return_their_own_results(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        found = {}

        def work(step):
            found[step] = checkpointer.save(step, {"t": numpy.full(10, step)}, async_=False).step

        threads = [threading.Thread(target=work, args=(step,)) for step in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {step: step for step in range(8)} and checkpointer.steps() == list(range(8))


def test_a_forked_child_does_not_wait_for_a_save_of_its_parent(tmp_path):
    with straightway.Checkpointer(tmp_path, rate_bytes_per_s=20e6) as checkpointer:
        future = checkpointer.save(1, {"t": numpy.ones(1 << 20)})
        child = os.fork()
        if child == 0:
            try:
                future.result(20)
            except RuntimeError as error:
                os._exit(7 if "was forked from" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert future.result().step == 1


def test_a_descriptor_of_a_future_wakes_an_event_loop(tmp_path):
    async def watched(future):
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(future.fileno(), done.set)
        await asyncio.wait_for(done.wait(), 30)
        loop.remove_reader(future.fileno())
        return future.done()

    with straightway.Checkpointer(tmp_path, rate_bytes_per_s=20e6) as checkpointer:
        future = checkpointer.save(1, {"t": numpy.ones(1 << 19)})
        descriptor = future.fileno()
        assert not select.select([descriptor], [], [], 0)[0] and not future.done()
        assert asyncio.run(watched(future)) and future.fileno() == descriptor
        # It stays readable, and may be asked for after the end.
        assert select.select([descriptor], [], [], 0)[0]
        later = checkpointer.save(2, {"n": 2})
        later.result(30)
        assert select.select([later.fileno()], [], [], 0)[0]


def events():
    """The number of open eventfds."""
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum("eventfd" in os.readlink(link) for link in links if os.path.islink(link))


def test_many_saves_leave_no_descriptor_and_share_one_thread(tmp_path):
    with straightway.Checkpointer(tmp_path / "a") as one, straightway.Checkpointer(tmp_path / "b") as other:
        before = events()
        futures = []
        for step in range(20):
            futures += [one.save(step, {"n": step}), other.save(step, {"n": step})]
            names = [thread.name for thread in threading.enumerate()]
            assert sum(name.startswith("straightway-save") for name in names) <= 1, names
        assert [future.result(30).step for future in futures] == [step // 2 for step in range(40)]
        del futures
        for _ in range(500):
            if events() == before and not any(t.name == "straightway-saves" for t in threading.enumerate()):
                break
            time.sleep(0.01)
        assert events() == before


def test_a_callback_may_wait_for_a_later_save(tmp_path):
    with straightway.Checkpointer(tmp_path) as checkpointer:
        steps, ended = [], threading.Event()

        def follow(future):
            steps.append(checkpointer.save(2, {"n": 2}).result(30).step)
            steps.append(checkpointer.save(3, {"n": 3}, async_=False).step)
            ended.set()

        checkpointer.save(1, {"n": 1}).add_done_callback(follow)
        assert ended.wait(60) and steps == [2, 3]
