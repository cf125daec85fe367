//! Merges the tensors of tensor-parallel ranks.

/// How the parts of all ranks are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankMerge {
    /// They stand below one another.
    Rows,
    /// They stand side by side.
    Columns,
    /// All are the same.
    One,
    /// They are added: each rank adds its own in front of the reduction.
    Sum,
    /// Rows or columns, whichever gives the head.
    Head,
}

/// By the name of a tensor in a layer. `parallel`: attention and feed-forward read the same rows.
pub fn of(name: &str, parallel: bool) -> RankMerge {
    let within = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if name == "lm_head.weight" {
        RankMerge::Head
    } else if within(&[
        "query_key_value.",
        "dense_h_to_4h.",
        "embed_tokens.",
        ".rpe.bias_",
        ".rpe.wei_",
        "alibi_embed.",
    ]) {
        RankMerge::Rows
    } else if within(&["attention.dense.weight", "dense_4h_to_h.weight", ".rpe.weight"]) {
        RankMerge::Columns
    } else if parallel && within(&["attention.dense.bias", "dense_4h_to_h.bias"]) {
        RankMerge::Sum
    } else {
        RankMerge::One
    }
}

/// The shape of the merged tensor, given the shapes of all ranks; `None` where they do not fit.
pub fn shape(merge: RankMerge, parts: &[Vec<usize>]) -> Option<Vec<usize>> {
    let first = parts.first()?;
    let axis = match merge {
        RankMerge::One | RankMerge::Sum | RankMerge::Head => {
            return parts.iter().all(|part| part == first).then(|| first.clone());
        }
        RankMerge::Rows => 0,
        RankMerge::Columns => 1,
    };
    let mut whole = first.clone();
    *whole.get_mut(axis)? = 0;
    for part in parts {
        let others = part.len() == first.len() && (0..first.len()).all(|at| at == axis || part[at] == first[at]);
        if !others {
            return None;
        }
        whole[axis] = whole[axis].checked_add(part[axis])?;
    }
    Some(whole)
}

/// The values of the merged tensor.
pub fn values(merge: RankMerge, parts: Vec<Vec<f32>>, columns: &[usize]) -> Vec<f32> {
    match merge {
        RankMerge::One | RankMerge::Head => parts.into_iter().next().unwrap_or_default(),
        RankMerge::Rows => parts.concat(),
        RankMerge::Sum => {
            let mut parts = parts.into_iter();
            let mut sum = parts.next().unwrap_or_default();
            parts.for_each(|part| sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value));
            sum
        }
        RankMerge::Columns => {
            let rows = parts.first().zip(columns.first()).map_or(0, |(part, columns)| part.len() / columns.max(&1));
            let mut whole = Vec::with_capacity(parts.iter().map(Vec::len).sum());
            for row in 0..rows {
                for (part, columns) in parts.iter().zip(columns) {
                    whole.extend_from_slice(&part[row * columns..(row + 1) * columns]);
                }
            }
            whole
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_the_whole() {
        let parts = || vec![vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0]];
        let shapes = [vec![2, 2], vec![2, 1]];
        assert_eq!(shape(RankMerge::Columns, &shapes), Some(vec![2, 3]));
        assert_eq!(values(RankMerge::Columns, parts(), &[2, 1]), [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
        assert_eq!(shape(RankMerge::Rows, &shapes), None);
        assert_eq!(shape(RankMerge::Rows, &[vec![2, 2], vec![1, 2]]), Some(vec![3, 2]));
        assert_eq!(values(RankMerge::Rows, parts(), &[2, 2]), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(values(RankMerge::Sum, vec![vec![1.0], vec![2.0]], &[]), [3.0]);
        assert_eq!(values(RankMerge::One, vec![vec![1.0], vec![2.0]], &[]), [1.0]);
    }

    /// Biases of layers that are split by their inputs are copies, unless both branches are reduced at once.
    #[test]
    fn names_say_how() {
        for (name, sequential, parallel) in [
            ("model.layers.0.attention.query_key_value.bias", RankMerge::Rows, RankMerge::Rows),
            ("model.layers.0.attention.dense.weight", RankMerge::Columns, RankMerge::Columns),
            ("model.layers.0.attention.dense.bias", RankMerge::One, RankMerge::Sum),
            ("model.layers.0.mlp.dense_4h_to_h.bias", RankMerge::One, RankMerge::Sum),
            ("model.layers.0.mlp.dense_h_to_4h.bias", RankMerge::Rows, RankMerge::Rows),
            ("model.layers.0.input_layernorm.bias", RankMerge::One, RankMerge::One),
            ("model.embed_tokens.weight", RankMerge::Rows, RankMerge::Rows),
            ("lm_head.weight", RankMerge::Head, RankMerge::Head),
        ] {
            assert_eq!([of(name, false), of(name, true)], [sequential, parallel], "{name}");
        }
    }
}
