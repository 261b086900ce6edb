"""A slow command that stops one node does not hit the process that a later start makes."""

import asyncio

from dledger_chaos.local import LocalTarget


async def test_a_node_is_not_started_again_before_the_command_that_stops_it_has_ended(tmp_path, monkeypatch):
    target = LocalTarget(tmp_path)
    begun, may_end, commands = asyncio.Event(), asyncio.Event(), []
    pids: list[int | None] = [1]

    async def command(*arguments, timeout_s):
        del timeout_s
        commands.append(arguments[1])
        if arguments[1] == "stop":
            begun.set()
            await may_end.wait()

    monkeypatch.setattr(target, "_run_dledger", command)
    monkeypatch.setattr(target, "pid", lambda _: pids[-1])
    stop = asyncio.create_task(target.stop_node("broker-a-n0"))
    await begun.wait()
    pids.append(None)  # the process is killed meanwhile
    start = asyncio.create_task(target.start_node("broker-a-n0"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert commands == ["stop"]
    may_end.set()
    await asyncio.gather(stop, start)
    assert commands == ["stop", "start"]
