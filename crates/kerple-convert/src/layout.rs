//! The correspondence of a model's parameters and the tensors of another program's files.
//!
//! ours    matrices `[in, out]`, `y = x W + b`; queries, keys and values in one matrix, columns `[head][q|k|v][D]`, or with fewer key
//!         heads `[q heads][k heads][v heads]`; see [`Heads`]
//! theirs  PyTorch's `[out, in]`, or GPT-2's `[in, out]`; queries, keys and values in one matrix of either order, or in three
//!
//! An [`LayoutEntry`] is a bijection between the values of one parameter and those of its tensors, so
//! reading and writing by the same entry restores every value. Biases are matrices of one row.
//!
//! [`Heads`]: kerple_burn::heads::Heads

mod arrange;
mod names;

use kerple_burn::plan::{NormKind, ResidualKind, SinkKind};
use kerple_core::encoding::{EncodingParameter, ParameterShare};
use kerple_lm::plan::{ModelPlan, Plan};
use kerple_run::ModelFamily;
use names::{FamilyNames, QkvPacking};

/// A tensor of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Its usual name, e.g. `gpt_neox.layers.0.attention.dense.weight`.
    pub name: String,
    /// Its shape as stored.
    pub shape: Vec<usize>,
}

/// A parameter of a decoder and the tensors it is built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutEntry {
    /// Its path in our files, e.g. `blocks.0.attention.out.weight`.
    pub ours: String,
    /// Its shape there.
    pub shape: Vec<usize>,
    /// The tensors that stand side by side along their outputs.
    pub theirs: Vec<SourceTensor>,
    /// Inputs and outputs of a matrix that ours stores as a vector.
    pub matrix: Option<[usize; 2]>,
    /// Whether theirs are `[out, in]`.
    pub transposed: bool,
    /// Heads and their features, where their outputs are `[q|k|v][head][D]` and ours `[head][q|k|v][D]`.
    pub parts_first: Option<[usize; 2]>,
}

impl LayoutEntry {
    /// Inputs and outputs of our matrix; a vector has one input.
    fn sides(&self) -> [usize; 2] {
        match (self.matrix, &self.shape[..]) {
            (Some(sides), _) => sides,
            (None, &[input, output]) => [input, output],
            (None, _) => [1, self.len()],
        }
    }

    /// Values of our parameter.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Other names under which a family's files hold a tensor, the usual one first: names without the base model's prefix, and
/// of GPT-NeoX's head.
pub fn aliases(family: ModelFamily, name: &str) -> Vec<String> {
    let names = FamilyNames::of(family);
    let mut all = vec![name.to_owned()];
    all.extend(names.head_alias.filter(|_| name == names.head).map(str::to_owned));
    let bare: Vec<String> = all.iter().filter_map(|name| name.strip_prefix(names.prefix)).map(str::to_owned).collect();
    all.extend(bare);
    all
}

/// Names of the tables that are as long as a vocabulary or a longest sequence.
#[derive(Clone, Copy, Debug)]
pub struct OutlineNames {
    /// The embedding.
    pub embedding: &'static str,
    /// Learned positions.
    pub positions: &'static str,
    /// The output projection.
    pub head: &'static str,
}

/// The names of a family's tables.
pub fn outline(family: ModelFamily) -> OutlineNames {
    let FamilyNames { embedding, head, .. } = FamilyNames::of(family);
    let positions = match family {
        ModelFamily::Gpt2 => "transformer.wpe.weight",
        _ => "model.encoding.positions",
    };
    OutlineNames { embedding, positions, head }
}

/// Every parameter of a plan's decoder, in the order of its own files, with the tensors of a family. A tied head is not among
/// them; see [`head`].
///
/// The family is one whose blocks can be those of the plan: what a family has no tensor for has no entry.
pub fn entries(family: ModelFamily, plan: &Plan) -> Vec<LayoutEntry> {
    let mut table = LayoutTable { names: FamilyNames::of(family), model: &plan.model, entries: Vec::new() };
    table.embedding();
    table.encodings(plan);
    (0..plan.model.n_layers).for_each(|layer| table.block(layer));
    table.norm("norm", table.names.norm);
    if !plan.model.block.tie_embeddings {
        table.entries.push(head(family, plan));
    }
    if plan.model.block.lm_head_bias {
        let name = table.names.head.replace(".weight", ".bias");
        table.vector("head_bias", &name, plan.model.n_logits());
    }
    table.entries
}

/// The output projection, whether it is the embedding or a matrix of its own.
pub fn head(family: ModelFamily, plan: &Plan) -> LayoutEntry {
    let [width, rows] = [plan.model.d_model, plan.model.n_logits()];
    let theirs = vec![SourceTensor { name: FamilyNames::of(family).head.to_owned(), shape: vec![rows, width] }];
    LayoutEntry {
        ours: "head".to_owned(),
        shape: vec![width, rows],
        theirs,
        matrix: None,
        transposed: true,
        parts_first: None,
    }
}

/// Entries in the making.
struct LayoutTable<'a> {
    names: FamilyNames,
    model: &'a ModelPlan,
    entries: Vec<LayoutEntry>,
}

impl LayoutTable<'_> {
    /// Values as they lie, `shape` in theirs.
    fn same(&mut self, ours: &str, our_shape: Vec<usize>, theirs: &str, shape: Vec<usize>) {
        let theirs = vec![SourceTensor { name: theirs.to_owned(), shape }];
        self.entries.push(LayoutEntry {
            ours: ours.to_owned(),
            shape: our_shape,
            theirs,
            matrix: None,
            transposed: false,
            parts_first: None,
        });
    }

    fn vector(&mut self, ours: &str, theirs: &str, len: usize) {
        self.same(ours, vec![len], theirs, vec![len]);
    }

    fn embedding(&mut self) {
        let shape = vec![self.model.vocab_size, self.model.d_model];
        self.same("embedding", shape.clone(), self.names.embedding, shape);
        if let Some(norm) = self.names.embedding_norm.filter(|_| self.model.block.embedding_norm) {
            self.norm("embedding_norm", norm);
        }
    }

    /// Scales, and shifts where the plan's norms have them.
    fn norm(&mut self, ours: &str, theirs: &str) {
        self.vector(&format!("{ours}.gamma"), &format!("{theirs}.weight"), self.model.d_model);
        if self.model.block.norm == NormKind::Layer {
            self.vector(&format!("{ours}.beta"), &format!("{theirs}.bias"), self.model.d_model);
        }
    }

    /// What encodings learn: GPT-2's rows, Inkling's relative biases, and all of kerple's own files.
    fn encodings(&mut self, plan: &Plan) {
        let geometry = plan.geometry();
        self.encoding(plan, None, &plan.encoding.parameters(&geometry), "encoding", self.names.encoding);
        for (number, (name, other)) in self.model.other_encodings().iter().enumerate() {
            let parameters = other.parameters(&self.model.kind_geometry(name, &geometry));
            let theirs = self.names.encoding.map(|names| names.replace("{}", &format!("{name}.{{}}")));
            let ours = format!("encoding.others.{number}");
            self.encoding(plan, Some(number), &parameters, &ours, theirs.as_deref());
        }
    }

    /// The parameters of one encoding: that of the model, or another one.
    fn encoding(
        &mut self,
        plan: &Plan,
        which: Option<usize>,
        parameters: &[EncodingParameter],
        ours: &str,
        names: Option<&str>,
    ) {
        let named = |name: &str| names.map(|names| names.replace("{}", &name.replace('.', "_")));
        let of = |share: ParameterShare| parameters.iter().filter(move |known| known.share == share).enumerate();
        let len = |parameter: &EncodingParameter| vec![parameter.shape.iter().product()];
        for (number, parameter) in of(ParameterShare::Model) {
            if let Some(theirs) = named(&parameter.name) {
                self.same(&format!("{ours}.values.{number}"), len(parameter), &theirs, parameter.shape.clone());
            }
        }
        let stands = self.model.every_layer(&plan.encoding).map(|layer| layer.other).enumerate();
        let own: Vec<usize> = stands.filter(|(_, other)| *other == which).map(|(layer, _)| layer).collect();
        for (place, layer) in own.into_iter().enumerate() {
            for (number, parameter) in of(ParameterShare::Layer) {
                let ours = format!("{ours}.layers.{place}.{number}");
                if self.names.relative.is_some() {
                    self.relative_bias(&ours, layer, parameter);
                } else if let Some(theirs) = named(&format!("layer{layer}_{}", parameter.name)) {
                    self.same(&ours, len(parameter), &theirs, parameter.shape.clone());
                }
            }
        }
    }

    /// A parameter of a layer's relative bias. Theirs of the matrix is `[out, in]`; ours stores both as vectors.
    fn relative_bias(&mut self, ours: &str, layer: usize, parameter: &EncodingParameter) {
        let Some([weight, profiles]) = self.names.relative else { return };
        let theirs = |name: &str| format!("{}{layer}.{name}", self.names.layer);
        let len = vec![parameter.shape.iter().product()];
        let (true, &[input, output]) = (parameter.name == "weight", &parameter.shape[..]) else {
            return self.same(ours, len, &theirs(profiles), parameter.shape.clone());
        };
        let theirs = vec![SourceTensor { name: theirs(weight), shape: vec![output, input] }];
        let matrix = Some([input, output]);
        let entry =
            LayoutEntry { ours: ours.to_owned(), shape: len, theirs, matrix, transposed: true, parts_first: None };
        self.entries.push(entry);
    }

    /// A linear layer from `input` to the outputs of `theirs` together.
    fn linear(
        &mut self,
        ours: &str,
        input: usize,
        theirs: &[(String, usize)],
        bias: bool,
        parts_first: Option<[usize; 2]>,
    ) {
        let transposed = self.names.transposed;
        let output = theirs.iter().map(|(_, output)| output).sum();
        let matrix = |output: usize| if transposed { vec![output, input] } else { vec![input, output] };
        let named = |end: &str, shape: &dyn Fn(usize) -> Vec<usize>| {
            let tensor = |(name, output): &(String, usize)| SourceTensor {
                name: format!("{name}.{end}"),
                shape: shape(*output),
            };
            theirs.iter().map(tensor).collect()
        };
        let weights = named("weight", &matrix);
        let biases = named("bias", &|output| vec![output]);
        let entry = |end: &str, shape, theirs, transposed| LayoutEntry {
            ours: format!("{ours}.{end}"),
            shape,
            theirs,
            matrix: None,
            transposed,
            parts_first,
        };
        self.entries.push(entry("weight", vec![input, output], weights, transposed));
        if bias {
            self.entries.push(entry("bias", vec![output], biases, false));
        }
    }

    fn block(&mut self, layer: usize) {
        let FamilyNames { layer: layers, norms, packing, out, up, gate, down, qk_norms, .. } = self.names;
        let (model, block) = (self.model, &self.model.block);
        let (width, hidden, heads) = (model.d_model, model.d_hidden, model.heads(layer));
        let theirs = |name: &str| format!("{layers}{layer}.{name}");
        let [attention, mlp] = ["attention", "mlp"].map(|branch| format!("blocks.{layer}.{branch}"));
        if layer > 0 || block.residual != ResidualKind::PostLn {
            self.norm(&format!("{attention}.norm"), &theirs(norms[0]));
        }
        let interleaved = heads.heads == heads.kv_heads;
        let split = interleaved.then_some([heads.heads, heads.head_dim]);
        let [inner, keys] = [heads.inner(), heads.kv_heads * heads.head_dim];
        let (packed, parts_first) = match packing {
            QkvPacking::HeadsFirst(name) => (vec![(theirs(name), heads.packed())], None),
            QkvPacking::PartsFirst(name) => (vec![(theirs(name), heads.packed())], split),
            QkvPacking::Apart(names) => (names.map(theirs).into_iter().zip([inner, keys, keys]).collect(), split),
        };
        self.linear(&format!("{attention}.qkv"), width, &packed, block.qkv_bias, parts_first);
        self.linear(&format!("{attention}.out"), inner, &[(theirs(out), width)], block.out_bias, None);
        for (ours, name) in ["q_norm", "k_norm"].into_iter().zip(qk_norms.into_iter().flatten()) {
            if block.qk_norm {
                self.vector(&format!("{attention}.{ours}"), &theirs(name), heads.head_dim);
            }
        }
        if self.names.encoding.is_some() {
            // what only kerple's own files can say
            for (ours, has, count) in [
                ("key_shift", block.key_shift, heads.kv_heads),
                ("growth", block.ssmax.is_some(), heads.heads),
                ("sinks", block.sink == SinkKind::Learned, heads.heads),
            ] {
                if has {
                    self.vector(&format!("{attention}.{ours}"), &theirs(&format!("attention.{ours}")), count);
                }
            }
        }
        if let Some(names) = self.names.convs {
            let places = [("attention.k_conv", keys), ("attention.v_conv", keys)];
            let places = places.into_iter().chain([("attention.out_conv", width), ("mlp.out_conv", width)]);
            for ((place, channels), name) in places.zip(names) {
                let (ours, filter) = (format!("blocks.{layer}.{place}"), block.short_conv.unwrap_or(0));
                self.same(&ours, vec![channels, filter], &theirs(name), vec![channels, 1, filter]);
            }
        }
        self.norm(&format!("{mlp}.norm"), &theirs(norms[1]));
        self.linear(&format!("{mlp}.up"), width, &[(theirs(up), hidden)], block.mlp_bias, None);
        if let Some(gate) = gate.filter(|_| block.glu) {
            self.linear(&format!("{mlp}.gate"), width, &[(theirs(gate), hidden)], block.mlp_bias, None);
        }
        self.linear(&format!("{mlp}.down"), hidden, &[(theirs(down), width)], block.mlp_bias, None);
    }
}
