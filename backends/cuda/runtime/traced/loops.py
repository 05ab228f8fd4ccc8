"""Turns a loop over blocks, in the forward of a user's module, into a list of block modules.

A block's forward is the body of the loop, read from the user's source. Variables that the body assigns and that are
read again later are passed from block to block; the first such tensor is the hidden state. The submodules that an
iteration calls become children of its block, and proxies take their old place.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from planc.backends.cuda.runtime.traced.roles import ModuleLoop, UnknownError

BLOCKS = "planc_blocks"
"""Name of the list of blocks in the module whose forward has the loop."""
BODY, NUMBER = "_planc_body", "_planc_number"
ENDS_EARLY = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Break, ast.Continue)


class LoopIteration(nn.Module):
    """A block made from one iteration of a loop in the forward of `owner`: maps the hidden state and the loop's
    variables to their new values."""

    def __init__(self, owner: nn.Module, body: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["owner"], self.__dict__["body"] = owner, body

    def forward(self, *given: Any) -> Any:
        made = self.__dict__["body"](self.__dict__["owner"], *given)
        return made[0] if len(made) == 1 else made


class PartProxy(nn.Module):
    """Stands in for a module that was moved into a block: calls the block's child of that name."""

    def __init__(self, block: LoopIteration, name: str) -> None:
        super().__init__()
        self.__dict__["block"], self.__dict__["name"] = block, name

    def _own(self) -> Any:
        return getattr(self.__dict__["block"], self.__dict__["name"])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._own()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "block" not in self.__dict__:
            return super().__getattr__(name)
        return getattr(self._own(), name)


def loops_of(shell: nn.Module, run: Callable[[nn.Module], Any]) -> Iterator[ModuleLoop]:
    """Yields the loops in `shell`, a module without weights, whose iterations call different submodules. `run` calls
    the model with tokens."""
    for path, owner in list(shell.named_modules()):
        own = not isinstance(owner, LoopIteration) and not type(owner).__module__.startswith("torch.")
        for place in range(len(_Forward(owner).loops)) if own else ():
            parts = _scouted(shell, path, place, run)
            if len(parts) > 1 and all(parts):
                yield ModuleLoop(path, place, tuple(_named(found) for found in parts))


def with_blocks(model: nn.Module, loop: ModuleLoop | None) -> nn.Module:
    """Returns `model` with the iterations of `loop` turned into blocks (done only once); None: unchanged."""
    if loop is None:
        return model
    owner = model.get_submodule(loop.path)
    if hasattr(owner, BLOCKS):
        return model
    forward, body = _Forward(owner).rewritten(loop.place)
    blocks = [LoopIteration(owner, body) for _ in loop.parts]
    for block, parts in zip(blocks, loop.parts, strict=True):
        for path, name in parts:
            where, _, last = path.rpartition(".")
            holder = owner.get_submodule(where)
            block._modules[name] = holder._modules[last]
            holder._modules[last] = PartProxy(block, name)
    setattr(owner, BLOCKS, nn.ModuleList(blocks))
    owner.__dict__["forward"] = types.MethodType(forward, owner)
    return model


def _named(paths: list[str]) -> tuple[tuple[str, str], ...]:
    """Returns a pair (path, new name) for each part of a block. Names are made of the path's words without numbers, so
    they are equal in all blocks."""
    found: dict[str, str] = {}
    for path in paths:
        words = path.split(".")
        tail = words[-1] if not words[-1].isdigit() else "_".join(w for w in words if not w.isdigit())
        name = tail.rstrip("0123456789").rstrip("_") or "part"
        found[path] = name if name not in found.values() else f"{name}_{len(found)}"
    return tuple(found.items())


def _scouted(shell: nn.Module, path: str, place: int, run: Callable[[nn.Module], Any]) -> list[list[str]]:
    """Returns the paths of the modules that each iteration of a loop calls; [] if it is no loop over blocks."""
    owner = shell.get_submodule(path)
    try:
        forward, body = _Forward(owner).rewritten(place)
    except UnknownError:
        return []
    found: list[list[str]] = []
    depth = [0]
    inside = [False]

    def repeat(*given: Any) -> Any:
        found.append([])
        inside[0] = True
        try:
            made = body(owner, *given)
        finally:
            inside[0] = False
        return made[0] if len(made) == 1 else made

    class LoopRepeats:
        def __getitem__(self, number: int) -> Any:
            return repeat

    def begins(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if inside[0] and depth[0] == 0 and name not in found[-1]:
                found[-1].append(name)
            depth[0] += 1

        return hook

    def ends(module: nn.Module, args: Any, made: Any) -> None:
        depth[0] -= 1

    hooks = []
    for name, module in owner.named_modules():
        if module is not owner:
            hooks += [module.register_forward_pre_hook(begins(name)), module.register_forward_hook(ends)]
    before = owner.__dict__.get("forward")
    owner.__dict__[BLOCKS] = LoopRepeats()
    owner.__dict__["forward"] = types.MethodType(forward, owner)
    try:
        run(shell)
    except Exception:  # the module's own code; its error is reported when it is traced unchanged
        found = []
    finally:
        for hook in hooks:
            hook.remove()
        del owner.__dict__[BLOCKS], owner.__dict__["forward"]
        if before is not None:
            owner.__dict__["forward"] = before
    seen = [name for parts in found for name in parts]
    return found if len(seen) == len(set(seen)) else []


class _Forward:
    """The syntax tree of a module's forward, with the loops that are not inside another loop."""

    def __init__(self, owner: nn.Module) -> None:
        """If the source cannot be read or the function is decorated, there are no loops."""
        self.function = inspect.unwrap(type(owner).forward)
        self.loops: list[ast.For] = []
        self.bodies: list[list[ast.stmt]] = []
        """The list of statements that contains each loop."""
        try:
            lines, first = inspect.getsourcelines(self.function)
            (made,) = ast.parse(textwrap.dedent("".join(lines))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            return
        if isinstance(made, ast.FunctionDef) and not made.decorator_list and made.args.args:
            self.tree = ast.increment_lineno(made, first - 1)
            self._look(made)

    def _look(self, node: ast.AST) -> None:
        for name in ("body", "orelse", "finalbody"):
            statements: list[ast.stmt] = getattr(node, name, [])
            for statement in statements:
                if isinstance(statement, ast.For):
                    self.loops.append(statement)
                    self.bodies.append(statements)
                elif isinstance(statement, ast.If | ast.With | ast.Try):
                    self._look(statement)

    def rewritten(self, place: int) -> tuple[Any, Any]:
        """Returns two functions: the forward with its loop number `place` calling blocks, and the body of this loop.
        Raises UnknownError."""
        loop, function, own = self.loops[place], self.function, self.tree.args.args[0].arg
        where = f"{inspect.getsourcefile(function)}:{loop.lineno}"
        if (
            any(isinstance(n, ENDS_EARLY) for s in loop.body for n in ast.walk(s))
            or loop.orelse
            or function.__closure__
        ):
            raise UnknownError(f"{where}: the body of this loop ends early, or reads variables of an outer function")
        targets = [n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)]
        known, after = self._known_before(loop), self._loaded_after(loop)
        loads, stores = _names(loop.body)
        carried = [n for n in stores if n not in targets and (n in known or n in after)]
        carried.sort(key=lambda n: loads.index(n) if n in loads else len(loads))
        if not carried:
            raise UnknownError(f"{where}: this loop passes nothing to its next iteration")
        # Wrappers of a block may pass it copies of lists and dicts, so those that it fills are passed on too.
        carried += [n for n in _filled(loop.body) if n in known and n not in (*carried, *targets, own)]
        free = [n for n in loads if n in known and n not in (*carried, *targets, own)]
        names = [*carried, *targets, *free]
        body = ast.FunctionDef(BODY, _arguments([own, *names]), [*loop.body, ast.Return(_tuple(carried))], [])
        blocks = ast.Attribute(_name(own), BLOCKS, ast.Load())
        call = ast.Call(ast.Subscript(blocks, _name(NUMBER), ast.Load()), [_name(n) for n in names], [])
        given = _tuple(carried, ast.Store()) if len(carried) > 1 else ast.Name(carried[0], ast.Store())
        loop.body = [ast.Assign([given], call)]
        loop.iter = ast.Call(_name("enumerate"), [loop.iter], [])
        loop.target = ast.Tuple([ast.Name(NUMBER, ast.Store()), loop.target], ast.Store())
        missing = [ast.Assign([ast.Name(n, ast.Store())], ast.Constant(None)) for n in carried if n not in known]
        at = self.bodies[place].index(loop)
        self.bodies[place][at:at] = missing
        _without_types(self.tree)
        module = ast.fix_missing_locations(ast.Module([body, self.tree], []))
        space = dict(function.__globals__)
        exec(compile(module, inspect.getsourcefile(function) or "", "exec"), space)
        return space[self.tree.name], space[BODY]

    def _known_before(self, loop: ast.For) -> set[str]:
        args = self.tree.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        names = {a.arg for a in every if a is not None}
        return names | {
            n.id
            for n in ast.walk(self.tree)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.lineno < loop.lineno
        }

    def _loaded_after(self, loop: ast.For) -> set[str]:
        end = loop.end_lineno or loop.lineno
        return {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.lineno > end}


def _names(statements: list[ast.stmt]) -> tuple[list[str], list[str]]:
    """Returns the variables that `statements` read, and those they assign, in order, without those of inner functions
    and comprehensions."""
    loads: dict[str, None] = {}
    stores: dict[str, None] = {}

    def look(node: ast.AST, inner: frozenset[str]) -> None:
        if isinstance(node, ast.Lambda | ast.FunctionDef):
            inner |= {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            targets = (n for g in node.generators for n in ast.walk(g.target))
            inner |= {n.id for n in targets if isinstance(n, ast.Name)}
        if isinstance(node, ast.Name) and node.id not in inner:
            (stores if isinstance(node.ctx, ast.Store) else loads)[node.id] = None
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            loads[node.target.id] = None
        for child in ast.iter_child_nodes(node):
            look(child, inner)

    for statement in statements:
        look(statement, frozenset())
    return list(loads), list(stores)


FILLS = ("append", "extend", "insert", "add", "update", "setdefault", "pop", "remove", "clear")


def _filled(statements: list[ast.stmt]) -> list[str]:
    """Returns the names of the lists, dicts and sets that `statements` change in place."""
    found: dict[str, None] = {}
    for node in (n for s in statements for n in ast.walk(s)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLS:
            inner: ast.expr = node.func.value
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            inner = node.value
        else:
            continue
        if isinstance(inner, ast.Name):
            found[inner.id] = None
    return list(found)


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _tuple(names: list[str], context: ast.expr_context | None = None) -> ast.expr:
    context = context or ast.Load()
    return ast.Tuple([ast.Name(n, context) for n in names], context)


def _arguments(names: list[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])


def _without_types(tree: ast.FunctionDef) -> None:
    """Removes type hints, which would be evaluated again."""
    tree.returns = None
    for node in ast.walk(tree.args):
        if isinstance(node, ast.arg):
            node.annotation = None
