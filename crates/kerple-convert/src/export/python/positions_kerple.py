"""What kerple's positional encodings hand to a model, in torch: tables over distances, rotations, rows of embeddings.

Everything is made in float64 from float32 parameters and cast to float32 once, so that positions keep their precision at
any length and in models of any dtype. A form is plain data of config.json, see `KerpleConfig`.
"""
import math

import torch


def used(parameter, stored):
    """The values that formulas take, float64: clamped to the range, through which gradients pass straight."""
    x, low, high = stored.double(), parameter.get("low"), parameter.get("high")
    if parameter.get("keep") == "smooth":
        if high is None:
            x = low + torch.nn.functional.softplus(x, threshold=100.0)
        else:
            x = low + (high - low) * torch.sigmoid(x)
    return x + (x.clamp(low, high) - x).detach() if (low, high) != (None, None) else x


class Exact:
    """Formulas as they are."""

    def __call__(self, x):
        return x

    def log1p(self, x):
        return torch.log1p(x)


class Rounded:
    """Formulas whose every step is rounded to bfloat16, as runs of low precision had them; gradients pass straight through."""

    def __call__(self, x):
        if not isinstance(x, torch.Tensor):
            return self(torch.tensor(x, dtype=torch.float64)).item()
        return x + (x.float().bfloat16().double() - x).detach()

    def log1p(self, x):
        return self(torch.log(self(1.0 + x)))


def rounding(form):
    return Rounded() if form.get("emulate") == "bf16" else Exact()


def kernel(program, values, d, r):
    """A kernel program at distances `d` [L]: nested lists of the operations of the kernel calculus; `r` rounds every step.

    An argument is a number, or the name of a learned value, which is [H, 1] in `values`. The result is [H, L] or [L].
    """
    name, *rest = program
    number = lambda value: r(values[value] if isinstance(value, str) else value)
    if name in ("sum", "product"):
        parts = [kernel(part, values, d, r) for part in rest]
        total = parts[0]
        for part in parts[1:]:
            total = r(total + part if name == "sum" else total * part)
        return total
    if name == "scale":
        return r(number(rest[0]) * kernel(rest[1], values, d, r))
    if name == "fraction":
        size = -kernel(rest[0], values, d, r)
        log = torch.log(torch.where(size > 0, size, 1.0))
        return -r(torch.where(size > 0, torch.exp(number(rest[1]) * log), 0.0))
    if name == "neg_log":
        return -r.log1p(-kernel(rest[0], values, d, r))
    if name == "exp_of":
        return r(torch.exp(kernel(rest[0], values, d, r)))
    x = [number(value) for value in rest]
    if name == "power":
        return -r(x[0] * r(d ** x[1]))
    if name == "log":
        return -r(x[0] * r.log1p(r(x[1] * d)))
    if name == "log3":
        return -r(x[0] * r.log1p(r(x[1] * r(d ** x[2]))))
    if name == "sqdist":
        return -r(d**2)
    if name == "gauss":
        return r(x[0] * r(torch.exp(-r(x[1] * r(d**2)))))
    if name == "exp":
        return r(x[0] * r(torch.exp(-r(x[1] * r(d ** x[2])))))
    if name == "cos":
        return r(x[0] * r(torch.cos(r(x[1] * d))))
    if name == "const":
        return x[0] + 0.0 * d
    raise ValueError(f"config.json: there is no kernel operation `{name}`")


def table(form, values, heads, lags):
    """Bias and weight at distances `lags` [L], [H, L] float32 each; None where there is none."""
    lags, r = lags.double().clamp(max=form.get("cap", math.inf)), rounding(form)
    d, kind, weight = r(lags), form["kind"], None
    if kind == "kernels":
        rows = {name: value.reshape(-1, 1) for name, value in values.items() if value.dim() == 1}
        bias, weight = (None if form[part] is None else kernel(form[part], rows, d, r) for part in ("bias", "weight"))
    elif kind == "alibi":
        bias = -r(torch.tensor(form["slopes"], dtype=torch.float64, device=d.device)[:, None] * d)
    elif kind == "spans":
        bias = -r(lags / torch.tensor(form["tokens"], dtype=torch.float64, device=d.device)[:, None])
    elif kind == "t5":
        edges = torch.tensor(form["edges"], dtype=torch.float64, device=d.device)
        bias = r(form["factor"] * r(values["weight"]))[torch.bucketize(lags, edges, right=True)].T
    elif kind == "bam":
        of_head = lambda name: values[name].double().reshape(-1, 1)
        ahead = 2.0 * torch.sinh(of_head("theta_mu")) if "theta_mu" in values else 0.0
        away = torch.abs(lags[None] + ahead) + form["eps"]
        bias = -r(torch.exp(of_head("alpha") + of_head("beta") * torch.log(away)))
    elif kind == "sandwich":
        # cos x - 1 without its cancellation
        total = torch.zeros_like(d)
        for k in range(form["features"] // 2):
            rate = r(form["base"] ** (-2.0 * k / form["features"]))
            total = total - 2.0 * torch.sin(0.5 * r(d * rate)) ** 2
        bias = r(r(total) * heads / (8.0 * torch.arange(1, heads + 1, dtype=torch.float64, device=d.device))[:, None])
    else:
        raise ValueError(f"config.json: there is no table `{kind}`")
    if bias is not None and form.get("scale") is not None:
        bias = form["scale"] * bias
    if bias is not None and form.get("reach") is not None:
        bias = torch.where(lags.abs() < form["reach"], bias, 0.0)
    return tuple(None if part is None else part.expand(heads, len(lags)).float() for part in (bias, weight))


def plain_rates(base, width):
    return [base ** (-2.0 * j / width) for j in range((width + 1) // 2)]


def stretched_base(base, width, stretch):
    return base if width <= 2 else base * stretch ** (width / (width - 2.0))


def rates(form, length):
    """Radians per position of each pair in a sequence of `length` positions, and the factor on cosines and sines."""
    found, factor = (form["frequencies"], 1.0) if "frequencies" in form else scaled_rates(form, length)
    kept = int(form.get("keep", 1.0) * len(found) + 1e-9)
    return found[:kept] + [0.0] * (len(found) - kept), factor


def scaled_rates(form, length):
    base, width, scaling = form["base"], form["width"], form.get("scaling")
    plain = plain_rates(base, width)
    if scaling is None:
        return plain, 1.0
    kind, original = scaling["kind"], scaling["original_len"]
    grown = max(length / original, 1.0)
    s = grown if scaling.get("factor") is None else scaling["factor"]
    if kind == "linear":
        return [rate / s for rate in plain], 1.0
    if kind == "ntk":
        return plain_rates(stretched_base(base, width, s), width), 1.0
    if kind == "dynamic":
        return plain_rates(stretched_base(base, width, s * grown - (s - 1.0)), width), 1.0
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = [(original * rate / math.tau - low) / (high - low) for rate in plain]
        return partly(plain, s, keep), 1.0
    if kind == "yarn":
        factor = scaling.get("attention_factor")
        return partly(plain, s, yarn_ramp(scaling, plain, base, width)), 0.1 * math.log(s) + 1.0 if factor is None else factor
    raise ValueError(f"config.json: there is no scaling `{kind}`")


def yarn_ramp(scaling, plain, base, width):
    original, fast, slow = scaling["original_len"], scaling["beta_fast"], scaling["beta_slow"]
    if scaling["ramp"] == "turns":
        return [(original * rate / math.tau - slow) / (fast - slow) for rate in plain]
    first, last = (width * math.log(original / (math.tau * turns)) / (2.0 * math.log(base)) for turns in (fast, slow))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0.0), min(last, max(width - 1.0, 0.0))
    return [1.0 - (j - first) / (0.001 if first == last else last - first) for j in range(len(plain))]


def partly(plain, s, keep):
    """Each rate where `keep` is 1, the rate over `s` where it is 0."""
    keep = [min(max(share, 0.0), 1.0) for share in keep]
    return [rate * share + rate / s * (1.0 - share) for rate, share in zip(plain, keep)]


def follows_length(form):
    """Whether rates depend on the length of the sequence, so that keys cannot be kept rotated."""
    scaling = form.get("scaling")
    return scaling is not None and (scaling["kind"] == "dynamic" or scaling.get("factor") is None)


def angles(form, length, positions):
    """Cosines and sines at `positions` [B, L] in a sequence of `length` positions, [B, 1, L, pairs] float32."""
    (found, amplitude), r = rates(form, length), rounding(form)
    found = r(torch.tensor(found, dtype=torch.float64, device=positions.device))
    angle = r(r(positions.double())[..., None] * found)[:, None]
    return (amplitude * angle.cos()).float(), (amplitude * angle.sin()).float()


def turned(x, cos, sin):
    """`x` [B, H, L, D] with its first features rotated, pairs half-split."""
    pairs = cos.shape[-1]
    a, b, rest = x[..., :pairs].float(), x[..., pairs : 2 * pairs].float(), x[..., 2 * pairs :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def waves(form, width, positions):
    """Sines, then cosines of the positions of any shape, [..., width] float64."""
    r = rounding(form)
    found = r(torch.tensor(plain_rates(form["base"], width), dtype=torch.float64, device=positions.device))
    angle = r(r(positions.double())[..., None] * found)
    return torch.cat([r(angle.sin()), r(angle.cos())], -1)
