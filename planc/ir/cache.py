"""Caches for the results of pure functions, stored on the object that the results depend on.

`Cache` holds the results of several functions (`Plan.cache`, `Model.cache`, ...); the decorator `cached_on` makes a
function use it. `Computed` caches one function of one argument.
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
    """Cached results: a dictionary for each function, from key to result."""

    def __missing__(self, function: Callable[..., Any]) -> dict[Hashable, Any]:
        results: dict[Hashable, Any] = {}
        self[function] = results
        return results

    def __reduce__(self) -> tuple[type[Cache], tuple[()]]:
        """Pickle an empty cache, because results can be computed again."""
        return Cache, ()

    def share(self, other: Cache, *functions: Callable[..., Any]) -> None:
        """From now on, use the same dictionaries of results as the cache `other`, for `functions` (default: all
        functions in `other`).

        The functions are decorated with `cached_on`, and must return equal results for the owners of both caches.
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
    """A dictionary that computes a missing value from its key on the first lookup.

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
