//! What was probably meant by a name that does not exist.

/// Names that are less alike than this are not suggested.
const LEAST_SIMILARITY: f64 = 0.8;

/// The candidate most like `name`, whatever its case; `None` where none is like it.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    let scored = candidates.into_iter().map(|candidate| (strsim::jaro(&name, &candidate.to_lowercase()), candidate));
    let (similarity, best) = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (similarity >= LEAST_SIMILARITY).then_some(best)
}

/// A message of serde about an unknown field or variant, with the candidate that was probably meant; other messages stay,
/// and so do those that suggest something already, as messages about a value inside another pass here once for each.
pub fn with_suggestion(message: &str) -> String {
    let suggestion = || {
        let (_, rest) = message.split_once("unknown field `").or_else(|| message.split_once("unknown variant `"))?;
        let (name, rest) = rest.split_once('`')?;
        let (_, expected) = rest.split_once("expected")?;
        nearest(name, expected.split('`').skip(1).step_by(2))
    };
    match suggestion() {
        Some(meant) if !message.contains("; did you mean `") => {
            format!("{}; did you mean `{meant}`?", message.trim_end())
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_completed_and_strangers_are_not() {
        let keys = ["steps", "batch_size", "learning_rate"];
        for (slip, meant) in [("stepz", "steps"), ("batchsize", "batch_size"), ("Learning_Rate", "learning_rate")] {
            assert_eq!(nearest(slip, keys), Some(meant));
        }
        assert_eq!(nearest("quux", keys), None);
    }

    #[test]
    fn messages_of_serde_are_completed() {
        let told = with_suggestion("unknown field `stepz`, expected one of `train_len`, `steps`");
        assert!(told.ends_with("`steps`; did you mean `steps`?"), "{told}");
        assert_eq!(with_suggestion(&told), told, "suggested once");
        for other in ["unknown field `quux`, expected `steps`", "invalid type: string, expected usize"] {
            assert_eq!(with_suggestion(other), other);
        }
    }
}
