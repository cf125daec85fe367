//! `data/*`: GPT-NeoX's document splits and packing.

use crate::case::Case;
use crate::{CaseComparison, CaseResult, EXACT};

pub fn run(case: &Case) -> CaseResult {
    match case.method() {
        "split_indices" => split_indices(case),
        "sample_index" => sample_index(case),
        other => Err(format!("`data/{other}` is not known")),
    }
}

fn split_indices(case: &Case) -> CaseResult {
    let mut comparison = CaseComparison::new("split boundaries");
    for documents in case.keys("expected") {
        let count: u64 = documents.parse().map_err(|_| format!("`{documents}` is not a number of documents"))?;
        let got = kerple_data::split_boundaries(count, "949,50,1").map_err(|error| error.to_string())?;
        let got: Vec<f64> = got.iter().map(|boundary| *boundary as f64).collect();
        case.compare(&mut comparison, documents, &got, EXACT)?;
    }
    Ok(vec![comparison])
}

fn sample_index(case: &Case) -> CaseResult {
    let sizes: Vec<i32> = case.input("sizes")?.iter().map(|size| *size as i32).collect();
    let documents: Vec<i32> = case.input("doc_idx")?.iter().map(|doc| *doc as i32).collect();
    let whole = |key: &str| case.setting(key).as_u64().ok_or_else(|| format!("the number `{key}` is missing"));
    let (seq_len, epochs) = (whole("seq_length")? as usize, whole("num_epochs")? as usize);
    let mut random = kerple_data::NumpyRandom::new(whole("numpy_seed")? as u32);
    let own_documents = kerple_data::document_index(sizes.len(), epochs, &mut random);
    let samples = kerple_data::sample_index(&sizes, &documents, seq_len, epochs, whole("tokens_per_epoch")? as usize);
    let shuffled = kerple_data::shuffle_index(samples.len() - 1, &mut random);
    let mut comparison = CaseComparison::new("packing");
    comparison.equal("doc_idx", &own_documents, &documents);
    let flat: Vec<f64> = samples.iter().flatten().map(|value| f64::from(*value)).collect();
    case.compare(&mut comparison, "sample_idx", &flat, EXACT)?;
    let shuffled: Vec<f64> = shuffled.iter().map(|value| *value as f64).collect();
    case.compare(&mut comparison, "shuffle_idx", &shuffled, EXACT)?;
    Ok(vec![comparison])
}
