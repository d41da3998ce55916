"""What a selector is asked, checked; and the best of some scores."""

import numpy
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from multihead.attend.check import unaligned
from multihead.attend.problem import Problem, make_problem
from multihead.error import MultiheadError
from multihead.pattern import Pattern

_AT_ONCE = 2**21  # scores at once: bounds the memory of choosing


def asked(
    q: Tensor, k: Tensor, *, mask: Pattern | Tensor | None, q_offset: int | None, placed: object = None
) -> Problem:
    """The call, checked; without gradients, in the dtype sums are kept in.

    Args:
        q: Queries.
        k: Keys.
        mask: What may be chosen.
        q_offset: Position of the first query.
        placed: The selector, where it needs to know where the queries stand.

    Raises:
        MultiheadError: They do not belong together, or nothing says where the queries stand.
    """
    made = make_problem(q.detach(), k.detach(), k.detach(), mask=mask, q_offset=q_offset).widen()
    if placed is not None and made.q_offset is None:
        raise unaligned(made.q_len, made.kv_len, [str(placed)])
    return made


def height(problem: Problem, columns: int) -> int:
    """How many queries have a bounded number of scores.

    Args:
        problem: What is asked.
        columns: Scores of a query and head.
    """
    return max(1, _AT_ONCE // max(problem.batch * problem.heads * columns, 1))


def best(scores: Float[Tensor, "*rows columns"], budget: int) -> Bool[Tensor, "*rows columns"]:
    """The greatest scores of each row, `budget` of them or all there are; of equal ones the first.

    -inf is never among them; NaN is before all, so that it shows in what is made of it.
    """
    columns = scores.shape[-1]
    if not scores.numel() or budget >= columns:
        return ~scores.isneginf()
    # A maximum of any NaN is NaN.
    ranked = torch.where(scores.isnan(), torch.inf, scores) if bool(scores.amax().isnan()) else scores
    least = _least(ranked, budget)
    # A row with fewer numbers than that has -inf as its least: all that is above it.
    found = (ranked >= least) & (ranked > -torch.inf)
    if not bool((found.sum(-1) > budget).any()):
        return found
    above = ranked > least
    equal = found & ~above
    return above | (equal & (equal.cumsum(-1) <= budget - above.sum(-1, keepdim=True)))


def _least(scores: Tensor, budget: int) -> Tensor:
    """The smallest of the `budget` greatest scores of each row, (*rows, 1)."""
    if scores.device.type != "cpu":
        return scores.topk(budget, -1).values.amin(-1, keepdim=True)
    # numpy parts a row by vector instructions, several times as fast as torch's topk on a processor.
    place = scores.shape[-1] - budget
    return torch.from_numpy(numpy.partition(scores.numpy(), place, axis=-1)[..., place : place + 1])


def check_no_graph(what: str) -> None:
    """Refuses a choice in a graph that is exported.

    Raises:
        MultiheadError: Under `torch.export` or `export_onnx`.
    """
    if torch.compiler.is_exporting():
        raise MultiheadError(
            asked="a graph that is exported, whose sizes depend on no numbers",
            arrived=f"{what}, which chooses keys by what is in them",
            remedy="export a model with dense attention (MultiHeadAttention, LatentAttention); torch.compile takes "
            "this one, with a break in the graph",
        )


def check_budget(what: str, budget: object, unit: str) -> None:
    """Refuses a budget that is no whole number of at least 1."""
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise MultiheadError(
            asked=f"{what}: the {unit} that a query attends to, a whole number of at least 1",
            arrived=f"{budget!r}"[:200],
            remedy="pass 1 or more; to attend to nothing use mask=nothing()",
        )
