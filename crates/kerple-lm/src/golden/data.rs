//! `data/*`: GPT-NeoX's document splits and packing.

use super::folder::{Case, Folder};
use super::{EXACT, Score};

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
