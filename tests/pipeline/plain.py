"""A plain simulator, which the one of `planc.pipeline` is compared with: as slow and as simple as can be."""

from collections.abc import Sequence

from planc.pipeline.actions import Action
from planc.pipeline.stage_times import StageTimes

Ends = list[list[float]]
"""End in seconds of each action of each rank's list."""


def plain_ends_s(lists: Sequence[Sequence[Action]], times: StageTimes) -> Ends:
    """Go round the ranks until every list has come to its end. Overlapped actions end together."""
    last = len(times.forward_s) - 1
    ended: dict[tuple[str, int, int], tuple[float, int]] = {}
    ends: Ends = [[] for _ in lists]

    def ready_s(action: Action, rank: int) -> float | None:
        kind, stage, m, _ = action
        before = [("forward", stage - 1, m)] if kind == "forward" and stage else []
        if kind in ("backward", "backward_input"):
            before = [("forward", stage, m)] + ([("backward", stage + 1, m)] if stage < last else [])
        if kind == "backward_weight":
            before = [("backward", stage, m)]
        if any(key not in ended for key in before):
            return None
        return max((end + (times.send_s if home != rank else 0.0) for end, home in map(ended.get, before)), default=0.0)

    while any(len(ends[rank]) < len(actions) for rank, actions in enumerate(lists)):
        before = sum(map(len, ends))
        for rank, actions in enumerate(lists):
            while (i := len(ends[rank])) < len(actions):
                group = actions[i : i + 1 + actions[i].overlaps_next]
                ready = [ready_s(a, rank) for a in group]
                if None in ready:
                    break
                end = max([ends[rank][-1] if i else 0.0, *ready]) + sum(map(times.of, group))
                for a in group:
                    ended["backward" if a.kind == "backward_input" else a.kind, a.stage, a.microbatch] = end, rank
                    ends[rank].append(end)
        assert sum(map(len, ends)) > before, "the lists deadlock"
    return ends
