//! `data/*`: GPT-NeoX's document splits and packing.

use crate::folder::{Case, Folder};
use crate::{EXACT, Score};

type Scores = Result<Vec<Score>, String>;

pub fn run(folder: &Folder, case: &Case) -> Scores {
    match case.id().split('/').nth(1) {
        Some("split_indices") => split_indices(folder, case),
        Some("sample_index") => sample_index(folder, case),
        other => Err(format!("`data/{}` is not known", other.unwrap_or_default())),
    }
}

fn split_indices(folder: &Folder, case: &Case) -> Scores {
    let mut score = Score::new("split boundaries");
    for documents in case.keys("expected") {
        let count: u64 = documents.parse().map_err(|_| format!("`{documents}` is not a number of documents"))?;
        let got = kerple_data::split_boundaries(count, "949,50,1").map_err(|error| error.to_string())?;
        let got: Vec<f64> = got.iter().map(|boundary| *boundary as f64).collect();
        score.compare(documents, &got, &case.numbers(folder, "expected", documents)?.values, EXACT);
    }
    Ok(vec![score])
}

fn sample_index(folder: &Folder, case: &Case) -> Scores {
    let sizes: Vec<i32> = case.numbers(folder, "inputs", "sizes")?.values.iter().map(|size| *size as i32).collect();
    let documents: Vec<i32> = case.numbers(folder, "inputs", "doc_idx")?.values.iter().map(|doc| *doc as i32).collect();
    let params = case.get("params");
    let number = |key: &str| params[key].as_u64().ok_or_else(|| format!("params.{key} is missing"));
    let (seq_len, epochs) = (number("seq_length")? as usize, number("num_epochs")? as usize);
    let mut random = kerple_data::NumpyRandom::new(number("numpy_seed")? as u32);
    let own_documents = kerple_data::document_index(sizes.len(), epochs, &mut random);
    let samples = kerple_data::sample_index(&sizes, &documents, seq_len, epochs, number("tokens_per_epoch")? as usize);
    let shuffled = kerple_data::shuffle_index(samples.len() - 1, &mut random);
    let mut score = Score::new("packing");
    score.equal("doc_idx", &own_documents, &documents);
    let flat: Vec<f64> = samples.iter().flatten().map(|value| f64::from(*value)).collect();
    score.compare("sample_idx", &flat, &case.numbers(folder, "expected", "sample_idx")?.values, EXACT);
    let shuffled: Vec<f64> = shuffled.iter().map(|value| *value as f64).collect();
    score.compare("shuffle_idx", &shuffled, &case.numbers(folder, "expected", "shuffle_idx")?.values, EXACT);
    Ok(vec![score])
}
