"""`spectune what-if`."""

import json
from dataclasses import asdict
from typing import Annotated, Any

from spectune.choice import LONGEST
from spectune.cli.options import flag, option
from spectune.errors import ConfigError

_TREE_ASSUMPTION = (
    "verifying all nodes is taken to cost one plain step, a level one draft step: measured rounds say more"
)
_ASSUMPTION = "verifying K + 1 tokens is taken to cost one plain step: measured rounds say more"


def what_if(
    alpha: Annotated[float | None, option("A", "Acceptance at every position, from 0 to 1.")] = None,
    tree: Annotated[
        str | None, option("TREE", "Price a tree, with --rank-acceptance: 4,2,2 children by depth, or paths 1;2;1.1.")
    ] = None,
    rank_acceptance: Annotated[
        list[str] | None,
        option(
            "A1,A2,…",
            "How likely the draft's first, second, … token is right. One: at every depth. Repeated: by depth.",
        ),
    ] = None,
    cost_ratio: Annotated[
        float | None, option("C", "cost_q/cost_p: a draft step in plain steps of the target.")
    ] = None,
    plain_s: Annotated[float | None, option("X", "Measured plain step, in seconds; goes with --round-s.")] = None,
    round_s: Annotated[
        list[float] | None,
        option("Y", "Measured round, in seconds. One: at K = --max-k (1 if not given). Repeated: at K = 1, 2, …"),
    ] = None,
    max_k: Annotated[int | None, option("N", "Largest K of the table, in tokens. Default: 16.")] = None,
    as_json: Annotated[bool, flag("Print JSON on stdout.", "--json")] = False,
) -> None:
    """Price a draft by the formula (1 − α^(K+1))/(1 − α), from a cost ratio or from measured times; or a tree."""
    from spectune.speedup import best_row, break_even_alpha, fastest_row, speedup_rows

    if tree is not None or rank_acceptance:
        if alpha is not None or tree is None or not rank_acceptance or max_k is not None:
            raise ConfigError(
                "a tree is priced by its ranks", "give --tree and --rank-acceptance, no --alpha or --max-k"
            )
        print(_tree_text(tree, rank_acceptance, cost_ratio, plain_s, round_s or [], as_json))
        return
    if alpha is None:
        raise ConfigError("an acceptance is needed", "give --alpha, or --tree with --rank-acceptance")
    costs = _costs(cost_ratio, plain_s, round_s or [], max_k)
    rows = speedup_rows(alpha, costs)
    best, reported = best_row(rows), fastest_row(rows).num_speculative_tokens
    result: dict[str, Any] = {
        "rows": [asdict(row) for row in rows],
        "best": {"num_speculative_tokens": best.num_speculative_tokens, "speedup": best.speedup},
        "break_even_num_speculative_tokens": reported,
        "break_even_alpha": break_even_alpha(reported, costs[reported]),
    }
    assumes = [] if cost_ratio is None else [_ASSUMPTION]
    print(json.dumps(result, indent=2, allow_nan=False) if as_json else "\n".join([_text(result), *assumes]))


def _tree_text(
    text: str, ranks: list[str], ratio: float | None, plain_s: float | None, round_s: list[float], as_json: bool
) -> str:
    """A tree beside the chain inside it and the best tree of as many nodes, ranks of different depths independent."""
    from spectune.tree import best_by_products, chain_tree, rank_table, tree_of_text, tree_value

    tree = tree_of_text(text)
    table = rank_table(ranks, tree)
    if len(round_s) > 1:
        raise ConfigError("a tree has one round", "give --round-s once")
    round_steps = _costs(ratio, plain_s, round_s, tree.depth)[tree.depth]
    chain, best = chain_tree(tree.depth), best_by_products(table, tree.nodes)
    rows: list[dict[str, Any]] = []
    for what, shape in (("tree", tree), ("chain inside it", chain), ("best of as many nodes", best)):
        tokens, equal = tree_value(shape, table), (shape.nodes, shape.depth) == (tree.nodes, tree.depth)
        row = {"what": what, "tree": shape.text, "nodes": shape.nodes, "depth": shape.depth, "width": shape.width}
        steps = _costs(ratio, None, [], shape.depth)[shape.depth] if ratio is not None else round_steps
        rows.append(
            {**row, "expected_tokens": tokens, "speedup": tokens / steps if equal or ratio is not None else None}
        )
    if as_json:
        return json.dumps({"rows": rows}, indent=2, allow_nan=False)
    lines = [f"{'':<22}  {'nodes':>5}  {'depth':>5}  {'width':>5}  {'tokens/round':>12}  {'speed-up':>8}"]
    for row in rows:
        speedup = "not timed" if row["speedup"] is None else f"{row['speedup']:.3f}"
        shown = f"{row['what']:<22}  {row['nodes']:>5}  {row['depth']:>5}  {row['width']:>5}"
        lines.append(f"{shown}  {row['expected_tokens']:>12.3f}  {speedup:>8}")
    lines.append(f"the best is {best.text}; ranks at different depths are taken as independent")
    return "\n".join([*lines, *([] if ratio is None else [_TREE_ASSUMPTION])])


def _costs(ratio: float | None, plain_s: float | None, round_s: list[float], max_k: int | None) -> dict[int, float]:
    """Plain steps that a round takes, by K."""
    from spectune.speedup import round_cost

    if max_k is not None and not 1 <= max_k <= LONGEST:
        raise ConfigError(f"--max-k is {max_k}", f"give a whole number from 1 to {LONGEST}")
    measured = plain_s is not None or bool(round_s)
    if measured == (ratio is not None) or (plain_s is None) == bool(round_s):
        raise ConfigError("one price is needed", "give --cost-ratio, or both --plain-s and --round-s")
    if ratio is not None:
        return {k: round_cost(ratio, k) for k in range(1, (max_k or 16) + 1)}
    for name, value in [("--plain-s", plain_s), *(("--round-s", value) for value in round_s)]:
        if value is None or not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}", "give a positive number of seconds")
    assert plain_s is not None
    if max_k is not None and len(round_s) > 1:
        raise ConfigError("--max-k does not go with several --round-s", "leave it out: they are of K = 1, 2, …")
    if len(round_s) == 1:
        return {max_k or 1: round_s[0] / plain_s}
    return {k: value / plain_s for k, value in enumerate(round_s, start=1)}


def _text(result: dict[str, Any]) -> str:
    lines = [f"{'K':>4}  {'tokens/round':>12}  {'speed-up':>8}"]
    best, alpha = result["best"]["num_speculative_tokens"], result["break_even_alpha"]
    for row in result["rows"]:
        k, tokens, speedup = row.values()
        lines.append(f"{k:>4}  {tokens:>12.3f}  {speedup:>8.3f}" + ("  ← best" if k == best else ""))
    if best == 0:
        tried = "no K reaches" if len(result["rows"]) > 1 else "this round does not reach"
        lines.append(f"plain decoding is fastest: {tried} 1.0×")
    k = result["break_even_num_speculative_tokens"]
    loses = f"at K = {k} even a perfect draft loses: the round takes longer than {k + 1} plain steps"
    lines.append(loses if alpha is None else f"at K = {k} it breaks even at α = {alpha:.3f}")
    return "\n".join(lines)
