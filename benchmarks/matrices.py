"""The statistics of heads from stored n x n matrices, in plain torch: what a user of `output_attentions` would write.

It is written to be fast: everything linear in the weights is a product or a sum of diagonals, so that the comparison in
`observe.py` is with a good program and not with a straw man. What needs more than the weights (the largest score, the
size of outputs) is not here.
"""

import torch

BINS, FARTHEST, OCTAVES, BLOCK = 32, 16, 15, 512


class Matrices:
    """What all layers of one input have in common.

    Args:
        ids: Token ids (length,).
        classes: Class of each token id (vocab,).
        special: Which token ids are special (vocab,).
        causal: Whether queries look back only.
    """

    def __init__(self, ids, classes, special, *, causal):
        n = len(ids)
        # A row that sees one key has nothing to choose from.
        self.start = start = int(causal)
        self.cuts = list(range(BLOCK - start, n - start, BLOCK))
        place = torch.arange(n)
        bins = torch.nn.functional.one_hot(place * BINS // n, BINS).float()
        kinds = torch.nn.functional.one_hot(classes[ids]).float()
        self.features = torch.cat([bins, kinds, special[ids].float()[:, None]], 1)
        self.kinds = kinds.shape[1]
        self.row_bins = bins[start:]
        self.place = place[start:]
        self.sees = (self.place + 1 if causal else torch.full((n,), n)).float()
        self.offset = (n - start) - (torch.arange(2 * n - start + 1)) + start
        equal = ids[:, None] == ids[None, :]
        equal &= ~torch.eye(n, dtype=torch.bool)
        after = torch.zeros_like(equal)
        after[:, 1:] = equal[:, :-1]
        if causal:
            equal, after = equal.tril(), after.tril()
        self.pairs = {"same_token": equal[start:].float(), "induction": after[start:].float()}
        self.octave = torch.bucketize(self.offset.abs(), 2 ** torch.arange(OCTAVES), right=True)

    def describe(self, weights):
        """Every statistic of one layer.

        Args:
            weights: (heads, length, length).

        Returns:
            For each name a tensor (heads, ...).
        """
        weights = weights[:, self.start :]
        rows = weights.shape[1]
        entropy = torch.special.entr(weights).sum(-1)
        top, key = weights.max(-1)
        found = {
            "entropy": entropy.mean(1),
            "entropy_share": (entropy / self.sees.log()).mean(1),
            "participation": torch.linalg.vector_norm(weights, dim=-1).pow(-2).mean(1),
            "max_weight": top.mean(1),
            "first_token": weights[:, :, 0].mean(1),
        }
        sums = weights @ self.features
        found["special_token"] = sums[..., -1].mean(1)
        found["token_class"] = sums[..., BINS:-1].mean(1)
        found["pooled_map"] = (self.row_bins.T @ sums[..., :BINS]) / self.row_bins.sum(0)[:, None]
        found["entropy_by_position"] = (entropy @ self.row_bins) / self.row_bins.sum(0)
        columns = weights.sum(1)
        found["received"] = columns
        found["received_top"] = sum(block.sum(1).amax(1) for block in weights.tensor_split(self.cuts, 1)) / rows
        for name, pairs in self.pairs.items():
            found[name] = weights.flatten(1) @ pairs.flatten() / pairs.any(1).sum()
        for name, distance in (("previous", 1), ("next", -1), ("self", 0)):
            at = self.place - distance
            inside = (at >= 0) & (at < self.sees) if distance >= 0 else (at < weights.shape[2]) & (at < self.sees)
            found[name + "_argmax"] = ((key == at) & inside).sum(1) / inside.sum()
        return found | self._by_distance(weights) | {"similarity": self._similarity(weights)}

    def _by_distance(self, weights):
        """What follows from the sums of the diagonals."""
        heads, rows, n = weights.shape
        # Rows one element longer than they are: the diagonals become columns.
        skewed = weights.new_zeros(heads, rows * (n + rows + 1))
        skewed[:, : rows * (n + rows)].view(heads, rows, n + rows)[..., rows:] = weights
        diagonals = skewed.view(heads, rows, n + rows + 1).sum(1) / rows
        offset = self.offset.float()
        near = [diagonals[:, self.offset == o].sum(1) for o in range(-FARTHEST, FARTHEST + 1)]
        signed = torch.where(self.offset < 0, -self.octave, self.octave) + OCTAVES
        seeing = rows / (n - 1)
        return {
            "distance": diagonals @ offset,
            "distance_absolute": diagonals @ offset.abs(),
            "offsets": torch.stack(near, 1),
            "distance_histogram": weights.new_zeros(heads, 2 * OCTAVES + 1).index_add_(1, signed, diagonals),
            "previous": near[FARTHEST + 1] * seeing,
            "next": near[FARTHEST - 1] * seeing,
            "self": near[FARTHEST],
        }

    def _similarity(self, weights):
        """Overlap of the heads of a layer: mean over rows of sum_j sqrt(A_hij A_gij)."""
        roots = weights.sqrt().flatten(1)
        return roots @ roots.T / weights.shape[1]
