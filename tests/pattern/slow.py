"""What the patterns of this room say of one pair, in plain Python: slow, and shares no code with the library."""

WORD = 2**64 - 1


def finalise(x):
    """The finaliser of splitmix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def hashed(seed, *counters):
    state = finalise((seed + 0x9E3779B97F4A7C15) & WORD)
    for counter in counters:
        state = finalise(((state ^ (counter & WORD)) + 0x9E3779B97F4A7C15) & WORD)
    return state


def random_pair(share, seed, i, j):
    return (hashed(seed, i, j) >> 11) / 2**53 < share


def picked_blocks(row, size, per_row, seed, length=None, near=0, ends=0):
    """The blocks one block of queries sees, by Floyd's method."""
    if row < 0:
        return set()
    if length is None:
        candidates = [block for block in range(ends, row) if row - block > near]
    else:
        blocks = (length + size - 1) // size
        if row >= blocks:
            return set()
        candidates = [block for block in range(ends, blocks - ends) if abs(row - block) > near]
    if len(candidates) <= per_row:
        return set(candidates)
    places = set()
    for pick, last in enumerate(range(len(candidates) - per_row, len(candidates))):
        place = (hashed(seed, row, pick) >> 1) % (last + 1)
        places.add(last if place in places else place)
    return {candidates[place] for place in places}


def random_block(i, j, size, per_row, seed, length=None, near=0, ends=0):
    if length is not None and not (0 <= i < length and 0 <= j < length):
        return False
    return j // size in picked_blocks(i // size, size, per_row, seed, length, near, ends)


def natten_start(index, length, kernel, dilation):
    """Where the window of a place begins: the rule of the NATTEN library's own kernels, case by case."""
    half = kernel // 2
    if dilation <= 1:
        return max(index - half, 0) + (length - index - half - 1 if index + half >= length else 0)
    start = index - half * dilation
    if start < 0:
        return index % dilation
    if index + half * dilation >= length:
        rest, whole = index % dilation, length // dilation * dilation
        if rest < length - whole:
            return whole + rest - 2 * half * dilation
        return whole + rest - kernel * dilation
    return start


def in_picture(height, width, *places):
    return all(0 <= place < height * width for place in places)


def neighbour(i, j, height, width, kernel, dilation=1):
    if not in_picture(height, width, i, j):
        return False
    sides = zip(divmod(i, width), divmod(j, width), (height, width), strict=True)
    for at, other, length in sides:
        start = natten_start(at, length, kernel, dilation)
        if other not in [start + step * dilation for step in range(kernel)]:
            return False
    return True


def in_grid_window(i, j, height, width, kernel, dilation=1):
    if not in_picture(height, width, i, j):
        return False
    steps = [step * dilation for step in range(-(kernel // 2), kernel // 2 + 1)]
    return i // width - j // width in steps and i % width - j % width in steps
