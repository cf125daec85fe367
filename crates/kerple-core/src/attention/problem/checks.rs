//! What a problem, its inputs and its gradients must fit.

use super::*;

impl<T: Number> AttentionProblem<'_, T> {
    fn check(&self) {
        let AttentionDims { batch, heads, kv_heads, queries, keys, head_dim, value_dim } = self.dims;
        assert!(head_dim > 0, "head_dim = 0");
        assert!(value_dim > 0, "value_dim = 0");
        assert!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "kv_heads = {kv_heads} does not divide heads = {heads}"
        );
        // the largest buffer of an engine, so that no size wraps: views may repeat elements and so be larger than memory
        let reach = queries.saturating_add(keys).saturating_add(1 << 10);
        let room =
            crate::elements(&[batch.max(1), heads.max(1), reach, head_dim.max(value_dim).saturating_add(1 << 6)]);
        assert!(room.is_some_and(|room| room <= isize::MAX as usize / size_of::<T>()), "{:?} is too large", self.dims);
        if self.evicted > 0 {
            let sink_tokens = self.mask.sink_tokens();
            let is_whole = self.lengths.is_none() && self.documents.is_none() && self.dropout.is_none();
            assert!(sink_tokens > 0 && is_whole, "keys are evicted after first tokens of whole sequences only");
            let start = if queries > 0 { self.visible(0, 0).start } else { sink_tokens };
            assert!(start >= sink_tokens, "the window of the first query starts at key {start}, an evicted one");
        }
        let has_tables = matches!(self.scores, ScoreTransform::Table(_));
        assert!(has_tables || self.mask.sink_tokens() == 0, "score modifications do not keep first tokens visible");
        let is_square = head_dim == value_dim;
        assert!(
            has_tables || is_square,
            "score modifications take value_dim = head_dim, got {value_dim} and {head_dim}"
        );
        assert!(self.softcap.is_none_or(|cap| cap > T::ZERO && cap.is_finite()), "softcap = {:?}", self.softcap);
        if !self.normalizer.is_softmax() {
            let kind = self.normalizer.kind();
            assert!(has_tables, "{kind} takes distance tables, and no score modification or bias of paths");
            assert!(self.sinks.is_none() && self.dropout.is_none(), "{kind} takes no sinks and no dropout");
        }
        if self.stick_breaking().is_some() {
            assert!(self.mask.sides() == Sides::OneSided, "stick_breaking requires causal attention");
            assert!(self.intervals.is_none(), "stick_breaking does not take intervals");
        }
        if let Some(selection) = self.selection {
            self.check_selection(selection);
        }
        if let Some(sinks) = self.sinks {
            crate::check_shape!(sinks, H = heads);
        }
        if let Some(dropout) = &self.dropout {
            dropout.check();
        }
        if let Some(lengths) = self.lengths {
            crate::check_shape!(lengths, B = batch);
            for (b, &length) in lengths.iter().enumerate() {
                assert!(length <= keys, "lengths[{b}] = {length} is more than keys = {keys}");
            }
        }
        if let Some(documents) = self.documents {
            assert!(self.lengths.is_none(), "lengths and documents exclude each other");
            let sizes = [documents.rows(), documents.queries(), documents.keys()];
            assert!(
                sizes == [batch, queries, keys],
                "documents of {sizes:?} rows, queries and keys in {:?}",
                self.dims
            );
        }
        if let Some(intervals) = self.intervals {
            self.check_intervals(intervals);
        }
        if let ScoreTransform::Table(of) = self.scores {
            for table in [of.bias, of.weight].into_iter().flatten() {
                self.check_table(of, table);
            }
            if let Some(rates) = of.feature_decay {
                crate::check_shape!(rates, D = head_dim);
                assert!(
                    self.mask.sides() == Sides::OneSided,
                    "decaying rotations require \
                    causal attention"
                );
                assert!(rates.iter().all(|rate| (0.0..=MAX_FEATURE_DECAY).contains(rate)), "feature_decay: {rates:?}");
            }
            if let Some(sums) = of.decay_cumsum {
                assert!(of.feature_decay.is_none(), "feature_decay and decay_cumsum exclude each other");
                self.check_decay_cumsum(sums);
            }
            if let Some(gate_cumsum) = of.gate_cumsum {
                self.check_gate_cumsum(gate_cumsum);
            }
            if let Some(learned) = of.positions {
                self.check_positions(learned);
                assert!(of.relative.is_none(), "learned positions and a relative bias per row exclude each other");
            }
            if let Some(relative) = of.relative {
                self.check_relative(relative);
            }
        }
        if let ScoreTransform::Path(path) = self.scores {
            self.check_path(path);
        }
        if let Some(path) = self.householder() {
            self.check_householder(path);
        }
    }

    fn check_intervals(&self, intervals: &[KeyInterval]) {
        let AttentionDims { batch, queries, keys, .. } = self.dims;
        assert!(self.lengths.is_none() && self.documents.is_none(), "intervals exclude lengths and documents");
        assert!(matches!(self.scores, ScoreTransform::Table(_)), "score modifications do not take intervals");
        assert!(self.mask.sink_tokens() == 0, "a mask with first tokens does not take intervals");
        crate::check_shape!(intervals, B = batch, Q = queries);
        for (at, &KeyInterval { start, end }) in intervals.iter().enumerate() {
            assert!(start.max(end) <= keys, "intervals[{at}] = {start}..{end} is not within {keys} keys");
        }
    }

    fn check_decay_cumsum(&self, sums: View<f64>) {
        assert!(self.mask.sides() == Sides::OneSided, "features that decay by their content require causal attention");
        assert!(self.intervals.is_none(), "features that decay by their content do not take intervals");
        sums.check("decay_cumsum", self.decay_shape());
        let heads = self.dims.heads;
        workers::for_each_number(self.segments() * heads, &|unit| {
            let DocumentSegment { row, queries, first_key, keys, .. } = self.segment(unit / heads);
            assert!(queries <= keys, "{queries} queries exceed the cumulative decays of {keys} keys in row {row}");
            let at = |key: usize| sums.row(row, unit % heads, first_key + key, self.dims.head_dim);
            let rises = |key: &usize| at(key - 1).iter().zip(at(*key)).fold(false, |rises, (a, b)| rises | (b > a));
            if let Some(key) = (1..keys).find(rises) {
                panic!("decay_cumsum increases at key {} of head {} in row {row}", first_key + key, unit % heads);
            }
        });
    }

    fn check_relative(&self, RelativeBias { rows, profiles, rank, reach }: RelativeBias<T>) {
        assert!(self.mask.sides() == Sides::OneSided, "a relative bias per row requires causal attention");
        assert!(rank > 0 && reach > 0, "a relative bias needs a rank and a reach, got {rank} and {reach}");
        crate::check_shape!(profiles, R = rank, E = reach);
        rows.check("relative.rows", self.relative_shape(rank));
    }

    fn check_householder(&self, HouseholderPath { directions, strengths, gate_cumsum }: HouseholderPath<T>) {
        assert!(self.mask.sides() == Sides::OneSided, "Householder products require causal attention");
        directions.check("householder.directions", self.key_shape());
        strengths.check("householder.strengths", self.strength_shape());
        self.check_no_query_before_keys("Householder products");
        if let Some(gate_cumsum) = gate_cumsum {
            self.check_gate_cumsum(gate_cumsum);
        }
    }

    fn check_path(&self, PathBias { queries, keys, width, slopes }: PathBias<T>) {
        assert!(self.mask.sides() == Sides::OneSided, "a bias of paths requires causal attention");
        assert!(width > 0, "a bias of paths needs features");
        crate::check_shape!(slopes, H = self.dims.heads);
        let [of_queries, of_keys] = self.path_shapes(width);
        queries.check("path.queries", of_queries);
        keys.check("path.keys", of_keys);
        self.check_no_query_before_keys("path");
    }

    fn check_positions(&self, LearnedPositions { positions, kernel, parameters }: LearnedPositions) {
        crate::check_shape!(parameters, H = self.dims.heads, P = kernel.parameters());
        self.check_sums("learned positions", positions);
        let rise = self.all_ordered(positions, |before, after| before <= after);
        assert!(rise, "learned positions must not decrease");
        // gradients divide by them
        let zero = parameters.iter().position(|parameter| *parameter == 0.0);
        if let (Some(at), true) = (zero, kernel.divides_by_parameters()) {
            panic!("parameters[{at}] of the kernel of learned positions is 0, which only splines and tables take");
        }
    }

    fn check_gate_cumsum(&self, gate_cumsum: Strided<&[f64]>) {
        self.check_sums("cumulative gates", gate_cumsum);
        let fall = || self.all_ordered(gate_cumsum, |before, after| before >= after);
        assert!(
            self.mask.sides() == Sides::OneSided || fall(),
            "cumulative gates must not increase in bidirectional attention"
        );
    }

    /// Whether neighbours within each segment are in this order, or NaN.
    fn all_ordered(&self, Strided { values, stride }: Strided<&[f64]>, ordered: fn(f64, f64) -> bool) -> bool {
        let heads = self.dims.heads;
        let row_is =
            |row: &[f64]| row.windows(2).all(|pair| ordered(pair[0], pair[1]) || pair[0].is_nan() || pair[1].is_nan());
        (0..self.segments()).map(|number| self.segment(number)).all(
            |DocumentSegment { row, first_key, keys, .. }| {
                (row * heads..(row + 1) * heads).all(|unit| row_is(&values[unit * stride + first_key..][..keys]))
            },
        )
    }

    /// Of running sums over the keys, `[B, H, K]`.
    fn check_sums(&self, name: &str, Strided { values, stride }: Strided<&[f64]>) {
        let AttentionDims { batch, heads, keys, .. } = self.dims;
        let units = batch * heads;
        let needed = crate::elements(&[units.saturating_sub(1), stride]).and_then(|start| start.checked_add(keys));
        let fits = stride >= keys && (units == 0 || needed.is_some_and(|needed| needed <= values.len()));
        assert!(fits, "{name}: {} values in rows of {stride} for {:?}", values.len(), self.dims);
        self.check_no_query_before_keys(name);
    }

    /// Where each query needs something of the key at its position.
    fn check_no_query_before_keys(&self, name: &str) {
        for DocumentSegment { row, queries, keys, .. } in (0..self.segments()).map(|number| self.segment(number)) {
            assert!(queries <= keys, "{queries} queries exceed the {name} of {keys} keys in row {row}");
        }
    }

    /// Of a table, or of the gradient in one.
    fn check_table(&self, of: ScoreTable<T>, table: &[T]) {
        crate::check_shape!(table, H = self.dims.heads, C = self.columns(of));
        let AttentionDims { queries, keys, .. } = self.largest().dims;
        let needed = match self.mask {
            Mask::Causal { .. } | Mask::CausalWithSinkTokens { .. } => keys + self.evicted,
            Mask::Bidirectional { .. } => keys.max(queries),
        };
        let reach = |it: &DocumentSegment| match self.mask {
            Mask::Causal { .. } | Mask::CausalWithSinkTokens { .. } => it.keys,
            Mask::Bidirectional { .. } => it.reach(),
        };
        let longest = || match self.documents.and_then(|documents| documents.longest_by(reach)) {
            Some((number, document)) => format!(" of document {number} of row {}", document.row),
            None => String::new(),
        };
        assert!(
            of.len >= needed,
            "tables have len = {}, but {queries} queries and {keys} keys{} need {needed}",
            of.len,
            longest()
        );
    }

    /// For what needs no values.
    pub(in crate::attention) fn check_scores(&self, q: View<T>, k: View<T>) {
        self.check();
        q.check("q", self.query_shape());
        k.check("k", self.key_shape());
    }

    pub(in crate::attention) fn check_forward(&self, [q, k, v]: [View<T>; 3], out: &ViewMut<T>, lse: &[T]) {
        let AttentionDims { batch, heads, queries, .. } = self.dims;
        self.check();
        q.check("q", self.query_shape());
        k.check("k", self.key_shape());
        v.check("v", self.value_shape());
        out.check("out", self.out_shape());
        crate::check_shape!(lse, B = batch, H = heads, Q = queries);
    }

    pub(in crate::attention) fn check_backward(&self, saved: &AttentionSaved<T>, gradients: &AttentionGradients<T>) {
        let AttentionDims { batch, heads, queries, .. } = self.dims;
        self.check();
        assert!(self.evicted == 0, "the backward needs the keys of all positions");
        let (query_shape, key_shape) = (self.query_shape(), self.key_shape());
        let (value_shape, out_shape) = (self.value_shape(), self.out_shape());
        for (name, view, shape) in [
            ("q", saved.q, query_shape),
            ("k", saved.k, key_shape),
            ("v", saved.v, value_shape),
            ("out", saved.out, out_shape),
            ("d_out", saved.d_out, out_shape),
        ] {
            view.check(name, shape);
        }
        crate::check_shape!(saved.lse, B = batch, H = heads, Q = queries);
        let AttentionGradients {
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
            d_relative,
            d_path,
            d_householder,
        } = gradients;
        assert!(d_sinks.is_none() || self.sinks.is_some(), "d_sinks without sinks");
        if let Some(d_decay_cumsum) = d_decay_cumsum {
            let given = matches!(self.scores, ScoreTransform::Table(ScoreTable { decay_cumsum: Some(_), .. }));
            assert!(given, "d_decay_cumsum without cumulative decays");
            crate::check_shape!(d_decay_cumsum, B = batch, H = heads, K = self.dims.keys, D = self.dims.head_dim);
        }
        if let Some(d_gate_cumsum) = d_gate_cumsum {
            let given = batch * heads == 0 || self.gate_cumsum(0, 0).is_some();
            assert!(given, "d_gate_cumsum without cumulative gates");
            crate::check_shape!(d_gate_cumsum, B = batch, H = heads, K = self.dims.keys);
        }
        if let Some(PositionGradients { d_positions, d_parameters }) = d_positions {
            let learned = self.learned().expect("d_positions without learned positions");
            crate::check_shape!(d_positions, B = batch, H = heads, K = self.dims.keys);
            crate::check_shape!(d_parameters, H = heads, P = learned.kernel.parameters());
        }
        if let Some(d_sinks) = d_sinks {
            crate::check_shape!(d_sinks, H = heads);
        }
        if let Some(RelativeGradients { d_rows, d_profiles }) = d_relative {
            let relative = self.relative().expect("d_relative without a relative bias");
            crate::check_shape!(d_profiles, R = relative.rank, E = relative.reach);
            d_rows.check("d_relative.d_rows", self.relative_shape(relative.rank));
        }
        if let Some(PathGradients { d_queries, d_keys }) = d_path {
            let [of_queries, of_keys] = self.path_shapes(self.path().expect("d_path without a bias of paths").width);
            d_queries.check("d_path.d_queries", of_queries);
            d_keys.check("d_path.d_keys", of_keys);
            d_queries.check_disjoint("d_path.d_queries and d_path.d_keys", of_queries, d_keys, of_keys);
        }
        if let Some(HouseholderGradients { d_directions, d_strengths }) = d_householder {
            assert!(self.householder().is_some(), "d_householder without Householder products");
            d_directions.check("d_householder.d_directions", key_shape);
            d_strengths.check("d_householder.d_strengths", self.strength_shape());
            let names = "d_householder.d_directions and d_householder.d_strengths";
            d_directions.check_disjoint(names, key_shape, d_strengths, self.strength_shape());
        }
        d_q.check("d_q", query_shape);
        d_k.check("d_k", key_shape);
        d_v.check("d_v", value_shape);
        d_q.check_disjoint("d_q and d_k", query_shape, d_k, key_shape);
        d_q.check_disjoint("d_q and d_v", query_shape, d_v, value_shape);
        d_k.check_disjoint("d_k and d_v", key_shape, d_v, value_shape);
        match self.scores {
            ScoreTransform::Table(of) => {
                for table in [d_bias, d_weight].into_iter().flatten() {
                    self.check_table(of, table);
                }
                assert!(d_score_mod.is_none(), "d_score_mod of tables");
            }
            ScoreTransform::Path(_) => {
                let alone = d_bias.is_none() && d_weight.is_none() && d_score_mod.is_none();
                assert!(alone, "d_bias, d_weight or d_score_mod of a bias of paths");
            }
            ScoreTransform::Householder(_) => {
                let alone = d_bias.is_none() && d_weight.is_none() && d_score_mod.is_none();
                assert!(alone, "d_bias, d_weight or d_score_mod of Householder products");
            }
            ScoreTransform::Mod(map) => {
                assert!(d_bias.is_none() && d_weight.is_none(), "d_bias or d_weight of a score map");
                if let Some(d_score_mod) = d_score_mod {
                    crate::check_shape!(d_score_mod, P = map.parameters());
                }
            }
        }
    }
}
