//! What engines make of a call, and how far that may be from the definition.

use super::case::{Case, PathCase, PositionCase, SCALE};
use super::layout::{Layout, dense};
use crate::Number;
use crate::attention::{
    AttentionDims, AttentionGradients, AttentionProblem, AttentionSaved, HouseholderGradients, HouseholderPath,
    LearnedPositions, Normalizer, PathBias, PathGradients, PositionGradients, RelativeBias, RelativeGradients,
    ScoreTable, ScoreTransform, Selection, Strides, View, ViewMut, backward_with, forward_with, naive,
};
use crate::cpu::InstructionSet;
use crate::forms::Strided;
/// What an engine makes of a [`Case`], dense `[B, H, L, D]` whatever the layout it was computed in.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::attention) struct Outcome<T> {
    pub(in crate::attention) out: Vec<T>,
    pub(in crate::attention) lse: Vec<T>,
    pub(in crate::attention) d_q: Vec<T>,
    pub(in crate::attention) d_k: Vec<T>,
    pub(in crate::attention) d_v: Vec<T>,
    pub(in crate::attention) d_bias: Vec<T>,
    pub(in crate::attention) d_weight: Vec<T>,
    pub(in crate::attention) d_score_mod: Vec<T>,
    pub(in crate::attention) d_sinks: Vec<T>,
    pub(in crate::attention) d_gate_cumsum: Vec<f64>,
    pub(in crate::attention) d_decay_cumsum: Vec<f64>,
    pub(in crate::attention) d_positions: Vec<f64>,
    pub(in crate::attention) d_parameters: Vec<f64>,
    pub(in crate::attention) d_rows: Vec<T>,
    pub(in crate::attention) d_profiles: Vec<T>,
    pub(in crate::attention) d_path_queries: Vec<T>,
    pub(in crate::attention) d_path_keys: Vec<T>,
    pub(in crate::attention) d_directions: Vec<T>,
    pub(in crate::attention) d_strengths: Vec<T>,
}

/// The two functions of an engine.
pub(in crate::attention) trait Engine<T> {
    fn forward(
        &self,
        problem: &AttentionProblem<T>,
        q: View<T>,
        k: View<T>,
        v: View<T>,
        out: ViewMut<T>,
        lse: &mut [T],
    );
    fn backward(&self, problem: &AttentionProblem<T>, saved: AttentionSaved<T>, gradients: AttentionGradients<T>);
}

struct Naive;

impl<T: Number> Engine<T> for Naive {
    fn forward(
        &self,
        problem: &AttentionProblem<T>,
        q: View<T>,
        k: View<T>,
        v: View<T>,
        out: ViewMut<T>,
        lse: &mut [T],
    ) {
        naive::forward(problem, q, k, v, out, lse);
    }
    fn backward(&self, problem: &AttentionProblem<T>, saved: AttentionSaved<T>, gradients: AttentionGradients<T>) {
        naive::backward(problem, saved, gradients);
    }
}

/// What a caller gets, on an instruction set.
pub(in crate::attention) struct Shipped(pub(in crate::attention) InstructionSet);

impl<T: Number> Engine<T> for Shipped {
    fn forward(
        &self,
        problem: &AttentionProblem<T>,
        q: View<T>,
        k: View<T>,
        v: View<T>,
        out: ViewMut<T>,
        lse: &mut [T],
    ) {
        forward_with(self.0, problem, [q, k, v], out, lse);
    }
    fn backward(&self, problem: &AttentionProblem<T>, saved: AttentionSaved<T>, gradients: AttentionGradients<T>) {
        backward_with(self.0, problem, saved, gradients);
    }
}

impl Case {
    pub(in crate::attention) fn in_f32(&self, set: InstructionSet) -> Outcome<f64> {
        self.run(&Shipped(set), |x| x as f32, f64::from)
    }

    pub(in crate::attention) fn in_f64(&self) -> Outcome<f64> {
        self.run(&Shipped(InstructionSet::Portable), |x| x, |x| x)
    }

    pub(in crate::attention) fn assert_equals_naive(self) {
        let case = self.rounded();
        let expected = case.naive();
        // f32 carries 6e-8; sums over a few hundred keys and features lose one more digit and a half, those over heads too two
        let by_tables =
            case.map.is_none() && case.path.is_none() && case.householder.is_none() && case.selective.is_none();
        let allowed = if by_tables { 1e-5 } else { 2e-5 };
        for set in InstructionSet::available() {
            assert_close(&case, &case.in_f32(set), &expected, allowed, set.name());
        }
        // f64 carries 1e-16, likewise
        assert_close(&case, &case.in_f64(), &expected, 1e-12, "f64");
    }
}

impl Case {
    pub(in crate::attention) fn naive(&self) -> Outcome<f64> {
        self.run(&Naive, |x| x, |x| x)
    }

    /// Runs an engine; `number` and `back` convert to and from its type.
    pub(in crate::attention) fn run<T: Number, E: Engine<T>>(
        &self,
        engine: &E,
        number: fn(f64) -> T,
        back: fn(T) -> f64,
    ) -> Outcome<f64> {
        let dims = self.dims;
        let cast = |values: &[f64]| values.iter().map(|&x| number(x)).collect::<Vec<_>>();
        let widen = |values: Vec<T>| values.into_iter().map(back).collect::<Vec<_>>();
        let tables = [&self.bias, &self.weight].map(|table| table.as_deref().map(cast));
        let map = self.map.as_ref().map(|map| map.cast(number));
        let relative = self.relative.as_ref().map(|of| (of.rank, of.reach, cast(&of.rows), cast(&of.profiles)));
        let of_decays = dense(dims.heads, dims.keys, dims.head_dim);
        let of_rows = |rank| Strides { batch: dims.heads * dims.queries * rank, head: dims.queries * rank, row: rank };
        let path = self.path.as_ref().map(|of| (of.width, cast(&of.queries), cast(&of.keys), &of.slopes[..]));
        let of_path = |rows, width| Strides { batch: dims.heads * rows * width, head: rows * width, row: width };
        let householder = self.householder.as_ref().map(|of| [cast(&of.directions), cast(&of.strengths)]);
        let of_keys = |width| Strides { batch: dims.kv_heads * dims.keys * width, head: dims.keys * width, row: width };
        let gate_cumsum = self.gate_cumsum.as_deref().map(|values| Strided { values, stride: dims.keys });
        let scores = match (&map, &path) {
            _ if householder.is_some() => {
                let [directions, strengths] = householder.as_ref().expect("it is some");
                ScoreTransform::Householder(HouseholderPath {
                    directions: View { data: directions, strides: of_keys(dims.head_dim) },
                    strengths: View { data: strengths, strides: of_keys(1) },
                    gate_cumsum,
                })
            }
            (Some(map), _) => ScoreTransform::Mod(map),
            (None, Some((width, queries, keys, slopes))) => ScoreTransform::Path(PathBias {
                queries: View { data: queries, strides: of_path(dims.queries, *width) },
                keys: View { data: keys, strides: of_path(dims.keys, *width) },
                width: *width,
                slopes,
            }),
            (None, None) => ScoreTransform::Table(ScoreTable {
                bias: tables[0].as_deref(),
                weight: tables[1].as_deref(),
                feature_decay: self.feature_decay.as_deref(),
                decay_cumsum: self.decay_cumsum.as_deref().map(|data| View { data, strides: of_decays }),
                gate_cumsum,
                positions: self.positions.as_ref().map(|PositionCase { kernel, x, parameters }| LearnedPositions {
                    positions: Strided { values: x, stride: dims.keys },
                    kernel: *kernel,
                    parameters,
                }),
                relative: relative.as_ref().map(|(rank, reach, rows, profiles)| RelativeBias {
                    rows: View { data: rows, strides: of_rows(*rank) },
                    profiles,
                    rank: *rank,
                    reach: *reach,
                }),
                len: self.table_len,
            }),
        };
        let (lengths, documents, mask) = (self.lengths.as_deref(), self.documents.as_ref(), self.mask);
        let (softcap, sinks) = (self.softcap.map(number), self.sinks.as_deref().map(cast));
        let sinks = sinks.as_deref();
        let (scale, intervals, dropout) = (number(SCALE), self.intervals.as_deref(), self.dropout);
        let problem = AttentionProblem {
            mask,
            lengths,
            documents,
            intervals,
            dropout,
            softcap,
            sinks,
            scores,
            normalizer: self.normalizer,
            ..AttentionProblem::causal(dims, scale)
        };
        let before = self.masked_before.as_deref();
        let selection = self.selective.map(|kind| Selection { before, ..Selection::from(kind) });
        let problem = AttentionProblem { selection, ..problem };
        let unset = number(f64::NAN); // every result must be overwritten
        let layout = Layout::new(dims, self.packed);
        let inputs = layout.join([&self.q, &self.k, &self.v].map(|values| cast(values)), unset);
        let [q, k, v] = layout.views(&inputs);
        let dense = dense(dims.heads, dims.queries, dims.value_dim);
        let mut out = vec![unset; self.d_out.len()];
        let mut lse = vec![unset; dims.batch * dims.heads * dims.queries];
        engine.forward(&problem, q, k, v, ViewMut::new(&mut out, dense), &mut lse);
        let d_out = cast(&self.d_out);
        let [saved_out, d_out] = [&out, &d_out].map(|data| View { data, strides: dense });
        let mut results = vec![unset; inputs.len()];
        let [mut d_bias, mut d_weight] =
            [(); 2].map(|()| vec![unset; dims.heads * self.mask.sides().columns(self.table_len)]);
        let [d_q, d_k, d_v] = layout.views_mut(&mut results);
        let mut d_score_mod = map.as_ref().map(|map| vec![unset; map.values.len()]);
        let mut d_sinks = self.sinks.as_ref().map(|sinks| vec![unset; sinks.len()]);
        let mut d_gate_cumsum =
            self.gate_cumsum.as_ref().filter(|_| map.is_none()).map(|gate_cumsum| vec![f64::NAN; gate_cumsum.len()]);
        let mut d_decay_cumsum = self.decay_cumsum.as_ref().map(|sums| vec![f64::NAN; sums.len()]);
        let mut d_of_positions =
            self.positions.as_ref().map(|of| [&of.x, &of.parameters].map(|values| vec![f64::NAN; values.len()]));
        let d_positions =
            d_of_positions.as_mut().map(|[d_positions, d_parameters]| PositionGradients { d_positions, d_parameters });
        let mut d_of_relative = relative
            .as_ref()
            .filter(|_| map.is_none())
            .map(|(rank, _, rows, profiles)| (*rank, vec![unset; rows.len()], vec![unset; profiles.len()]));
        let d_relative = d_of_relative.as_mut().map(|(rank, d_rows, d_profiles)| RelativeGradients {
            d_rows: ViewMut::new(d_rows, of_rows(*rank)),
            d_profiles,
        });
        let mut d_of_path = path
            .as_ref()
            .filter(|_| map.is_none())
            .map(|(width, queries, keys, _)| (*width, vec![unset; queries.len()], vec![unset; keys.len()]));
        let d_path = d_of_path.as_mut().map(|(width, d_queries, d_keys)| PathGradients {
            d_queries: ViewMut::new(d_queries, of_path(dims.queries, *width)),
            d_keys: ViewMut::new(d_keys, of_path(dims.keys, *width)),
        });
        let mut d_of_householder = householder.as_ref().map(|of| of.each_ref().map(|values| vec![unset; values.len()]));
        let d_householder = d_of_householder.as_mut().map(|[d_directions, d_strengths]| HouseholderGradients {
            d_directions: ViewMut::new(d_directions, of_keys(dims.head_dim)),
            d_strengths: ViewMut::new(d_strengths, of_keys(1)),
        });
        let has_tables = map.is_none() && path.is_none() && householder.is_none();
        let of_table = |table| Some(table).filter(|_| has_tables);
        let gradients = AttentionGradients {
            d_q,
            d_k,
            d_v,
            d_bias: of_table(&mut d_bias[..]),
            d_weight: of_table(&mut d_weight[..]),
            d_score_mod: d_score_mod.as_deref_mut(),
            d_sinks: d_sinks.as_deref_mut(),
            d_gate_cumsum: d_gate_cumsum.as_deref_mut(),
            d_decay_cumsum: d_decay_cumsum.as_deref_mut(),
            d_positions,
            d_relative,
            d_path,
            d_householder,
        };
        engine.backward(&problem, AttentionSaved { q, k, v, out: saved_out, lse: &lse, d_out }, gradients);
        let [d_q, d_k, d_v] = layout.split(&results).map(widen);
        let [d_score_mod, d_sinks] = [d_score_mod, d_sinks].map(Option::unwrap_or_default);
        let [out, lse, d_bias, d_weight, d_score_mod, d_sinks] =
            [out, lse, d_bias, d_weight, d_score_mod, d_sinks].map(widen);
        let tables = |table| if has_tables { table } else { Vec::new() };
        let (d_bias, d_weight, d_gate_cumsum) = (tables(d_bias), tables(d_weight), d_gate_cumsum.unwrap_or_default());
        let (_, d_rows, d_profiles) = d_of_relative.unwrap_or_default();
        let (_, d_path_queries, d_path_keys) = d_of_path.unwrap_or_default();
        let [d_rows, d_profiles, d_path_queries, d_path_keys] =
            [d_rows, d_profiles, d_path_queries, d_path_keys].map(widen);
        let [d_directions, d_strengths] = d_of_householder.unwrap_or_default().map(widen);
        let [d_positions, d_parameters] = d_of_positions.unwrap_or_default();
        Outcome {
            out,
            lse,
            d_q,
            d_k,
            d_v,
            d_bias,
            d_weight,
            d_score_mod,
            d_sinks,
            d_gate_cumsum,
            d_decay_cumsum: d_decay_cumsum.unwrap_or_default(),
            d_positions,
            d_parameters,
            d_rows,
            d_profiles,
            d_path_queries,
            d_path_keys,
            d_directions,
            d_strengths,
        }
    }
}

/// Asserts that every result is within `tolerance` of the expected one, relative to the largest value of its kind.
///
/// The scores of a row with a lone key have gradient 0, the difference of two equal dots summed in different orders. What is
/// left are their roundings: D of them, of partial sums of order sqrt(D), so of order D altogether, and in the gradients of
/// queries and keys times the scale, a weight and a key or query, in those of a relative bias times a profile or row. A table
/// adds up the residues of all such rows. The parameters of a kernel of learned positions add up a residue of every row: the
/// gradients of its scores cancel but for the roundings of its delta, and the kernel of far keys differs little from key to key.
/// So they do at the edges of a path to the left of what has weight: those of a query add one residue up over all of its edges,
/// those of a key are times a feature of a query.
pub(in crate::attention) fn assert_close(
    case: &Case,
    got: &Outcome<f64>,
    expected: &Outcome<f64>,
    tolerance: f64,
    what: &str,
) {
    let rows = (0..case.dims.batch).flat_map(|b| (0..case.dims.queries).map(move |i| (b, i)));
    let lone_rows = rows.clone().filter(|&(b, i)| case.count(b, i) == 1).count();
    let rows = rows.filter(|&(b, i)| case.count(b, i) > 0).count();
    let breaks_sticks = matches!(case.normalizer, Normalizer::StickBreaking(_));
    let residue = 0.1 + 0.02 * case.dims.head_dim.max(case.dims.value_dim) as f64;
    let most = |values: &[f64]| values.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
    let reach = SCALE * most(&case.q).max(most(&case.k)) * case.weight.as_deref().map_or(1.0, most);
    let fields = |o: &Outcome<f64>| {
        let Outcome {
            out,
            lse,
            d_q,
            d_k,
            d_v,
            d_bias,
            d_weight,
            d_score_mod,
            d_sinks,
            d_gate_cumsum,
            d_decay_cumsum,
            d_positions,
            d_parameters,
            d_rows,
            d_profiles,
            d_path_queries,
            d_path_keys,
            d_directions,
            d_strengths,
        } = o.clone();
        [
            ("out", out),
            ("lse", lse),
            ("d_q", d_q),
            ("d_k", d_k),
            ("d_v", d_v),
            ("d_bias", d_bias),
            ("d_weight", d_weight),
            ("d_score_mod", d_score_mod),
            ("d_sinks", d_sinks),
            ("d_gate_cumsum", d_gate_cumsum),
            ("d_decay_cumsum", d_decay_cumsum),
            ("d_positions", d_positions),
            ("d_parameters", d_parameters),
            ("d_rows", d_rows),
            ("d_profiles", d_profiles),
            ("d_path_queries", d_path_queries),
            ("d_path_keys", d_path_keys),
            ("d_directions", d_directions),
            ("d_strengths", d_strengths),
        ]
    };
    for ((name, got), (_, expected)) in fields(got).into_iter().zip(fields(expected)) {
        let finite = expected.iter().filter(|x| x.is_finite());
        let residues = match name {
            // under stick-breaking each gradient of a row is rounded as what the row has left is, and these do not cancel
            "d_parameters" if breaks_sticks => rows.max(1) * case.dims.keys,
            // a token's gate adds up the keys of its query too
            "d_gate_cumsum" if breaks_sticks => rows.max(1) + case.dims.keys,
            name if breaks_sticks && SUMS.contains(&name) => rows.max(1),
            "d_parameters" => rows.max(1),
            name if SUMS.contains(&name) => lone_rows.max(1),
            _ => 1,
        };
        let factor = match (name, &case.relative) {
            ("d_q" | "d_k", _) => reach,
            // times a query and a key, as gradients of products are
            ("d_directions" | "d_strengths", _) => reach * most(&case.q).max(most(&case.k)),
            ("d_decay_cumsum", _) => reach * most(&case.q).max(most(&case.k)),
            ("d_parameters", _) => case.positions.as_ref().map_or(1.0, PositionCase::steepest),
            ("d_rows", Some(relative)) => most(&relative.profiles),
            ("d_profiles", Some(relative)) => most(&relative.rows),
            // what hundreds of random calls left was at most a tenth of a residue
            ("d_path_queries", _) => case.path.as_ref().map_or(1.0, |path| path.steepest(case) / 5.0),
            ("d_path_keys", _) => case.path.as_ref().map_or(1.0, |path| most(&path.queries)),
            _ => 1.0,
        };
        let factor = factor.max(1.0);
        let cancelled = residue * factor * (residues as f64).sqrt(); // independent roundings
        let largest = finite.fold(cancelled, |largest: f64, x| largest.max(x.abs()));
        for (i, (&got, &expected)) in got.iter().zip(&expected).enumerate() {
            let close = got == expected || (got - expected).abs() <= tolerance * largest;
            assert!(close, "{what}: {name}[{i}] is {got}, not {expected}; largest {largest}");
        }
    }
}

/// Gradients that add up over rows.
const SUMS: [&str; 7] = ["d_bias", "d_weight", "d_score_mod", "d_sinks", "d_gate_cumsum", "d_positions", "d_profiles"];

impl PositionCase {
    /// The largest derivative of a head's kernel in a parameter, at the largest distance that there may be.
    pub(super) fn steepest(&self) -> f64 {
        let [least, most] = self.x.iter().fold([f64::MAX, 0.0], |[least, most], &x| [x.min(least), x.max(most)]);
        let count = self.kernel.parameters();
        let of_head = |own: &[f64]| {
            let mut found = vec![0.0; count];
            self.kernel.add_gradient(own, (most - least).max(0.0), 1.0, &mut found);
            found.into_iter().fold(0.0, |most: f64, d| most.max(d.abs()))
        };
        self.parameters.chunks_exact(count).map(of_head).fold(0.0, f64::max)
    }
}

impl PathCase {
    /// The largest change of a feature of a query's gradient when the gradients of all scores to the left of a key change by one.
    fn steepest(&self, case: &Case) -> f64 {
        let (width, AttentionDims { batch, heads, queries, keys, .. }) = (self.width, case.dims);
        let mut steepest = 0.0f64;
        for row in 0..batch * heads * queries {
            let (of, query) = (row / queries, row % queries);
            let p = &self.queries[row * width..][..width];
            let edges = self.keys[of * keys * width..].chunks_exact(width).take(keys - queries + query + 1);
            let mut changes = vec![0.0; width];
            for r in edges {
                let a = p.iter().zip(r).map(|(p, r)| p * r).sum::<f64>() / width as f64;
                let derivative = self.slopes[of % heads] / (1.0 + a.exp()) / width as f64;
                for (change, r) in changes.iter_mut().zip(r) {
                    *change += derivative * r;
                    steepest = steepest.max(change.abs());
                }
            }
        }
        steepest
    }
}

/// `sum(out * d_out)`, whose gradients the backward returns.
fn loss(case: &Case) -> f64 {
    case.naive().out.iter().zip(&case.d_out).map(|(out, d_out)| out * d_out).sum()
}

type Field = (&'static str, fn(&mut Case) -> &mut Vec<f64>, fn(&Outcome<f64>) -> &Vec<f64>);

/// Asserts that the definition's gradients are the differences of its loss.
pub(super) fn assert_gradients_match_differences(case: &Case) {
    let exact = case.naive();
    let inputs: [Field; 3] = [
        ("q", |case| &mut case.q, |outcome| &outcome.d_q),
        ("k", |case| &mut case.k, |outcome| &outcome.d_k),
        ("v", |case| &mut case.v, |outcome| &outcome.d_v),
    ];
    let tables: [Field; 2] = [
        ("bias", |case| case.bias.as_mut().unwrap(), |outcome| &outcome.d_bias),
        ("weight", |case| case.weight.as_mut().unwrap(), |outcome| &outcome.d_weight),
    ];
    let map: [Field; 1] = [("map", |case| &mut case.map.as_mut().unwrap().values, |outcome| &outcome.d_score_mod)];
    let path: [Field; 2] = [
        ("path queries", |case| &mut case.path.as_mut().unwrap().queries, |outcome| &outcome.d_path_queries),
        ("path keys", |case| &mut case.path.as_mut().unwrap().keys, |outcome| &outcome.d_path_keys),
    ];
    let householder: [Field; 2] = [
        ("directions", |case| &mut case.householder.as_mut().unwrap().directions, |outcome| &outcome.d_directions),
        ("strengths", |case| &mut case.householder.as_mut().unwrap().strengths, |outcome| &outcome.d_strengths),
    ];
    let of_scores = match (&case.map, &case.path) {
        _ if case.householder.is_some() => &householder[..],
        (Some(_), _) => &map[..],
        (None, Some(_)) => &path[..],
        (None, None) => &tables[..],
    };
    let sinks: [Field; 1] = [("sinks", |case| case.sinks.as_mut().unwrap(), |outcome| &outcome.d_sinks)];
    let gate_cumsum: [Field; 1] =
        [("gate_cumsum", |case| case.gate_cumsum.as_mut().unwrap(), |outcome| &outcome.d_gate_cumsum)];
    let decay_cumsum: [Field; 1] =
        [("decay_cumsum", |case| case.decay_cumsum.as_mut().unwrap(), |outcome| &outcome.d_decay_cumsum)];
    let relative: [Field; 2] = [
        ("relative rows", |case| &mut case.relative.as_mut().unwrap().rows, |outcome| &outcome.d_rows),
        ("profiles", |case| &mut case.relative.as_mut().unwrap().profiles, |outcome| &outcome.d_profiles),
    ];
    let positions: [Field; 2] = [
        ("positions", |case| &mut case.positions.as_mut().unwrap().x, |outcome| &outcome.d_positions),
        ("parameters", |case| &mut case.positions.as_mut().unwrap().parameters, |outcome| &outcome.d_parameters),
    ];
    let of_tokens = gate_cumsum.iter().chain(&decay_cumsum).chain(&positions).chain(&relative);
    let own = inputs.iter().chain(of_scores).chain(&sinks).chain(of_tokens);
    for (name, field, gradient) in own {
        for (i, &exact) in gradient(&exact).iter().enumerate() {
            let step = 1e-5;
            let moved = |by: f64| {
                let mut case = case.clone();
                field(&mut case)[i] += by;
                loss(&case)
            };
            let numeric = (moved(step) - moved(-step)) / (2.0 * step);
            // truncation is step^2 times a third derivative of order 1..10, rounding 1e-16 * |loss| / step with |loss| < 100
            // the gradient of softpick takes the largest logit, which its eps of 1e-8 is relative to, as a constant
            let allowed = if case.normalizer == Normalizer::Softpick { 1e-6 } else { 1e-8 };
            assert!((numeric - exact).abs() < allowed, "{name}[{i}]: {numeric} {exact}");
        }
    }
}
