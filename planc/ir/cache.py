"""Caches of pure functions' results, stored on the value they depend on. They never change a result.

`Cache` holds the results of several functions: `Plan.cache`, `Sharded.cache`, `Sharded.layout_cache`, `Model.cache`.
`cached_on` decorates a function to use one. `Computed` is a table that fills itself, for one function of one key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(dict[Callable[..., Any], dict[Hashable, Any]]):
    """Results of functions, by function and key."""

    def __missing__(self, function: Callable[..., Any]) -> dict[Hashable, Any]:
        results: dict[Hashable, Any] = {}
        self[function] = results
        return results

    def __reduce__(self) -> tuple[type[Cache], tuple[()]]:
        """Pickle as an empty cache; results are computed again on demand."""
        return Cache, ()

    def share(self, other: Cache, *functions: Callable[..., Any]) -> None:
        """Share cached results with the cache `other`, for functions whose results are equal for the owners of both.

        `functions` are decorated with `cached_on`. For each of them, both caches use one table from now on. If none is
        given, the tables of all functions in `other` are shared.
        """
        if not functions:
            self.update(other)
        for function in functions:
            raw = function.__wrapped__  # type: ignore[attr-defined]
            self[raw] = other[raw]


def cached_on(where: Callable[..., tuple[Cache, Hashable]]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that caches a function's results.

    Args:
        where: a function that returns, for the decorated function's arguments, the cache and the key of the result.

    >>> class Owner:
    ...     cache = Cache()
    >>> @cached_on(lambda owner, n: (owner.cache, n))
    ... def square(owner, n):
    ...     print("computed")
    ...     return n * n
    >>> square(Owner, 3), square(Owner, 3)
    computed
    (9, 9)
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def look_up(*args: P.args, **kwargs: P.kwargs) -> T:
            cache, key = where(*args, **kwargs) if kwargs else where(*args)
            results = cache[function]
            try:
                return results[key]  # type: ignore[no-any-return]
            except KeyError:
                pass  # computed outside, so that its own errors have no other behind them
            found = results[key] = function(*args, **kwargs)
            return found

        return look_up

    return decorate


class Computed(dict[K, V]):
    """A table that computes an entry on its first lookup.

    >>> squares = Computed(lambda n: n * n)
    >>> squares[3], squares
    (9, {3: 9})
    """

    def __init__(self, compute: Callable[[K], V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: K) -> V:
        value = self[key] = self._compute(key)
        return value
