"""Whatever is handed over, the compiled part answers with a result or with an error in words, and never stops the process."""

import random

import pytest
import torch

from kerple import _native
from kerple.torch import Encoding, LinearAttention, attention
from kerple.torch._ops import encoding

TYPES = [torch.float32, torch.float32, torch.float32, torch.float64, torch.float16, torch.int64, torch.bool]


def array(draw, *shape, most=3):
    """Mostly of this shape; sometimes of another, of other numbers, or laid out in some other way."""
    if draw.random() < 0.1:
        shape = shape[: draw.randrange(len(shape) + 1)] + (draw.choice([0, 1, most]),) * draw.randrange(2)
    dtype = draw.choice(TYPES) if draw.random() < 0.1 else torch.float32
    if any(size > 1000 for size in shape):
        return torch.zeros((), dtype=dtype).expand(shape)
    x = torch.randn(shape).to(dtype)
    layout = draw.random()
    if layout < 0.1 and x.dim() > 1:
        x = x.transpose(draw.randrange(x.dim()), -1)
    elif layout < 0.2 and x.dim() > 0 and x.shape[0] > 0:
        x = x[:1].expand_as(x)
    elif layout < 0.3 and x.dim() > 0:
        x = x.repeat_interleave(2, -1)[..., ::2]
    return x


def number(draw, *usual):
    return draw.choice([*usual, *usual, None, 0, -1, 2**62, 0.5, float("nan"), float("inf"), "x"])


def sizes(draw):
    pick = lambda: draw.choice([0, 1, 2, 3, 7, 33])  # noqa: E731
    heads = draw.choice([1, 2, 4])
    return pick(), heads, draw.choice([1, heads, 3]), pick(), pick(), draw.choice([1, 4, 5])


def answered(call):
    """Whether it gave a result; anything but the errors that are promised is raised."""
    try:
        call()
    except (ValueError, TypeError, OverflowError) as error:
        assert str(error)
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_attention_answers_in_words(seed):
    draw, good = random.Random(seed), 0
    torch.manual_seed(seed)
    for _ in range(200):
        batch, heads, groups, queries, keys, features = sizes(draw)
        q = array(draw, batch, heads, queries, features, most=2**40)
        k, v = (array(draw, batch, groups, keys, features, most=2**40) for _ in "kv")
        columns = draw.choice([keys, keys + 3, 2 * max(queries, keys) - 1])
        options = dict(
            causal=draw.choice([True, False]),
            window=draw.choice([None, None, number(draw, 3)]),
            scale=draw.choice([None, None, number(draw, 0.3)]),
            softcap=draw.choice([None, None, number(draw, 2.0)]),
        )
        if draw.random() < 0.2:
            options |= dict(dropout_p=draw.choice([0.0, 0.3, number(draw, 0.1)]), dropout_seed=draw.choice([None, number(draw, 7)]))
        for name, shape in (("bias", (heads, columns)), ("weight", (heads, columns)), ("sinks", (heads,))):
            if draw.random() < 0.3 and min(shape) >= 0:
                options[name] = array(draw, *shape)
        if draw.random() < 0.15:
            options["gates"] = -array(draw, batch, heads, keys).double().abs()
        if draw.random() < 0.15:
            rank, reach = draw.choice([1, 3, 17]), draw.choice([1, 5, 40])
            options["relative"] = (array(draw, batch, heads, queries, rank, most=2**40), array(draw, rank, reach))
        if draw.random() < 0.07:
            kernel, count = draw.choice([("log", 2), ("power", 2), ("log3", 3), ("spline", 5), ("log", 3), ("x", 2)])
            parameters = array(draw, heads, count).double().abs()
            steps = array(draw, batch, heads, keys).double().abs()
            options["positions"] = steps.cumsum(-1) if steps.dim() else steps
            options["position_kernel"] = (kernel, parameters)
        for name in ("key_lengths", "key_starts"):
            if draw.random() < 0.2:
                options[name] = [draw.choice([0, 1, keys, keys, keys + 1, -1]) for _ in range(batch)]
        good += answered(lambda q=q, k=k, v=v, options=options: attention(q, k, v, **options))
    assert 10 < good < 140, "some fit and some do not"


@pytest.mark.parametrize("seed", range(4))
def test_the_compiled_functions_answer_in_words(seed):
    """Called with what the Python part would never hand over, room for results of other sizes among it."""
    draw, good = random.Random(seed), 0
    torch.manual_seed(seed)
    rules = [_native.Rule(0.3, (causal, None, None), None, 2) for causal in (True, False)]
    encodings = [encoding(Encoding(kind, 2, 4, seed=1)._key) for kind in ("kerple_log", "t5", "dape", "shaw", "xpos", "rotary")]
    rules += [_native.Rule(0.3, (True, None, None), None, 1, one) for one in encodings] + [_native.Rule(0.3, (True, None, None), None, 1, None, 0.5)] * 2
    linear = LinearAttention("kerple_log", 2, 4, seed=1, count=8)
    for _ in range(200):
        rule, length = draw.choice(rules), draw.choice([1, 3, 5])
        some = lambda *shape: array(draw, *shape) if draw.random() < 0.3 else None  # noqa: B023, E731
        q, k, v = (array(draw, 1, 2, length, 4) for _ in "qkv")
        numbers = array(draw, draw.choice([2 * length, 40])) if draw.random() < 0.3 else None
        clocks = array(draw, 1, 2, length).double() if draw.random() < 0.3 else None
        documents = torch.randint(-2, 4, draw.choice([(2,), (1, length), (1, 2, 3)])) if draw.random() < 0.3 else None
        relative = (array(draw, 1, 2, length, 3), array(draw, 3, 4)) if draw.random() < 0.3 else None
        steps = array(draw, 1, 2, length).double()
        steps, parameters = steps.abs().cumsum(-1) if steps.dim() else steps, array(draw, 2, draw.choice([2, 3])).double()
        learned = (steps, parameters, draw.choice(["log", "log", "power", "log3", "spline", "x"])) if draw.random() < 0.3 else None
        limits, seed_of = (some(1), some(1), documents), draw.choice([None, torch.tensor([5])])
        inputs = (q, k, v, some(2, length), some(2, length), some(2), numbers, clocks, relative, learned, limits, seed_of)
        beside = (*inputs[:8], *(relative or (None, None)), *(learned[:2] if learned else (None, None)))
        made = [None if x is None or draw.random() < 0.05 else torch.zeros(x.shape, dtype=x.dtype) for x in beside]
        out, lse = torch.zeros(q.shape), array(draw, 1, 2, length)
        calls = [
            lambda: _native.attention_forward(rule, inputs, out, lse),  # noqa: B023
            lambda: _native.attention_backward(rule, inputs, (out, lse, q), made),  # noqa: B023
            lambda: _native.linear_forward(
                linear._rule(True), (q, k, v, linear._values(), some(1)), out, lse, draw.choice([None, _native.LinearState()])  # noqa: B023
            ),
            lambda: draw.choice(encodings).turns(  # noqa: B023
                draw.choice([0, 5]), draw.choice([0, 5, 2**62]), array(draw, 3, 2).double(), array(draw, 3, 2).double()  # noqa: B023
            ),
            lambda: draw.choice(encodings).table(  # noqa: B023
                array(draw, 4).double(), draw.choice([0, 3, 2**60]), array(draw, 2, 3).double(), None  # noqa: B023
            ),
        ]
        good += answered(draw.choice(calls))
    assert good > 5


def test_objects_that_are_no_arrays():
    class Lies:
        """Says that it has more numbers than any memory."""

        shape, dtype = (2**40, 2**40), "f4"

        def data_ptr(self):
            return 4096

        def stride(self):
            return (2**40, 1)

        def element_size(self):
            return 4

        def is_floating_point(self):
            return True

    rule = _native.Rule(1.0, (True, None, None), None, 1)
    q = torch.zeros(1, 1, 1, 4)
    for wrong in (Lies(), 3, "x", object(), [1.0]):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            _native.attention_forward(rule, (wrong, q, q, *(None,) * 7, (None,) * 3, None), q, q[..., 0])
    with pytest.raises(ValueError, match="length 12"):
        _native.attention_forward(rule, (q, q), q, q)
    for wrong in ("", "{", '{"kind":"kerple_log","r1":1e999}', "null", "[" * 5000):
        with pytest.raises(ValueError):
            _native.Encoding(wrong, 2, 4, 16)
    x = torch.zeros(1, 8, 512, 64)
    for threads in (0, 2**40):
        with pytest.raises(ValueError, match="threads"):
            _native.attention_forward(_native.Rule(1.0, (True, None, None), None, threads), (x, x, x, *(None,) * 7, (None,) * 3, None), x, torch.zeros(1, 8, 512))
