//! Packed documents where only whole sequences can be computed: each document becomes a row of a batch, and documents of
//! similar length share one. A batch is padded to its longest document, which is less than twice as long as its shortest, so
//! that more than half of its rows are tokens.

use crate::attention_context::{AttentionMask, LinearContext};
use crate::forward_context::ForwardContext;
use burn::tensor::{Int, Tensor, TensorData};
use kerple_core::attention::PackedDocuments;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a document stands among the tokens of all rows.
#[derive(Clone, Copy)]
struct DocumentTokens {
    first: usize,
    len: usize,
}

/// Documents whose lengths have the same number of binary digits, the shortest first.
fn by_length(documents: &PackedDocuments) -> BTreeMap<u32, Vec<DocumentTokens>> {
    let mut batches: BTreeMap<u32, Vec<DocumentTokens>> = BTreeMap::new();
    for document in documents.documents().filter(|document| document.length > 0) {
        let first = document.row * documents.keys() + document.first_key;
        let tokens = DocumentTokens { first, len: document.length };
        batches.entry(tokens.len.ilog2()).or_default().push(tokens);
    }
    batches
}

/// Linear attention of packed `[B, H, L, D]` queries, keys and values with `[B, H, L]` gates, by a function for sequences that are
/// one document each; 0 where a token belongs to no document.
///
/// # Panics
/// When the mask has no documents.
pub fn by_document(
    [q, k, v]: [Tensor<4>; 3],
    mask: &AttentionMask,
    gates: Option<Tensor<3>>,
    context: &LinearContext,
    attend: impl Fn([Tensor<4>; 3], &AttentionMask, Option<Tensor<3>>, &LinearContext) -> Tensor<4>,
) -> Tensor<4> {
    let documents = mask.documents.as_deref().expect("the rows consist of documents");
    let ([rows, heads, len, _], device, dtype) = (q.dims(), q.device(), v.dtype());
    let value_dim = v.dims()[3];
    let span = context.pass.span.unwrap_or(documents.longest_len());
    let context = LinearContext { pass: ForwardContext { span: Some(span), ..context.pass }, ..context.clone() };
    // one row for each token
    let tokens = [q, k, v].map(|x| {
        let width = x.dims()[3];
        x.swap_dims(1, 2).reshape([rows * len, heads * width])
    });
    let gates = gates.map(|gates| gates.swap_dims(1, 2).reshape([rows * len, heads]));
    let nothing = Tensor::<2>::zeros([1, heads * value_dim], (&device, dtype));
    let (mut outputs, mut computed) = (vec![nothing], 1);
    // of each token its row among the outputs
    let mut places = vec![0i64; rows * len];
    for batch in by_length(documents).into_values() {
        let longest = batch.iter().map(|document| document.len).max().unwrap_or(0);
        // padding repeats a token of the document
        let token = |document: &DocumentTokens, at: usize| document.first + at.min(document.len - 1);
        let index: Vec<i64> =
            batch.iter().flat_map(|document| (0..longest).map(|at| token(document, at) as i64)).collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(index, [batch.len() * longest]), &device);
        let own = tokens.clone().map(|x| {
            let width = x.dims()[1] / heads;
            x.select(0, index.clone()).reshape([batch.len(), longest, heads, width]).swap_dims(1, 2)
        });
        let gates = gates
            .clone()
            .map(|gates| gates.select(0, index.clone()).reshape([batch.len(), longest, heads]).swap_dims(1, 2));
        let lengths: Arc<[usize]> = batch.iter().map(|document| document.len).collect();
        let lengths = lengths.iter().any(|length| *length < longest).then_some(lengths);
        let out = attend(own, &AttentionMask { lengths, documents: None, pattern: mask.pattern }, gates, &context);
        outputs.push(out.swap_dims(1, 2).reshape([batch.len() * longest, heads * value_dim]));
        for (number, document) in batch.iter().enumerate() {
            (0..document.len).for_each(|at| places[document.first + at] = (computed + number * longest + at) as i64);
        }
        computed += batch.len() * longest;
    }
    let places = Tensor::<1, Int>::from_data(TensorData::new(places, [rows * len]), &device);
    Tensor::cat(outputs, 0).select(0, places).reshape([rows, len, heads, value_dim]).swap_dims(1, 2)
}
