//! Schedules, optimizer updates and statistics.

use crate::folder::{Case, Folder};
use crate::{EXACT, Score};
use kerple_core::ops::adam;
use kerple_lm::schedule::LrScheduler;
use kerple_report::statistics;
use serde_json::Value;

type Scores = Result<Vec<Score>, String>;

fn number(entry: &Value, key: &str) -> Result<f64, String> {
    entry[key].as_f64().ok_or_else(|| format!("{key} is missing"))
}

pub fn schedule(folder: &Folder, case: &Case) -> Scores {
    let params = case.get("params");
    let schedule = LrScheduler {
        lr_cycle_steps: 0,
        learning_rate: number(params, "start_lr")?,
        min_lr: number(params, "min_lr")?,
        steps: number(params, "total_iters")? as u64,
        warmup_ratio: number(params, "warmup")?,
        lr_schedule: serde_json::from_value(params["decay_style"].clone()).map_err(|error| error.to_string())?,
    };
    let steps = case.numbers(folder, "expected", "steps")?;
    let got: Vec<f64> = steps.values.iter().map(|step| schedule.at(*step as u64)).collect();
    let mut score = Score::new("schedule");
    score.compare("lr", &got, &case.numbers(folder, "expected", "lr")?.values, case.tolerance(""));
    Ok(vec![score])
}

/// Adam on parameters with a range: projected after each step, or free with a clamped working copy.
pub fn adam(folder: &Folder, case: &Case) -> Scores {
    let start = case.numbers(folder, "inputs", "p0")?.values;
    let gradients = case.numbers(folder, "inputs", "grads")?.values;
    let params = case.get("params");
    let (low, high) = (number(params, "lo")?, number(params, "hi")?);
    let beta = |at: usize| params["betas"][at].as_f64().ok_or_else(|| "betas are missing".to_owned());
    let betas = [beta(0)?, beta(1)?];
    let clamp = |values: &[f64]| values.iter().map(|value| value.clamp(low, high)).collect::<Vec<f64>>();
    let run = |project: bool| -> Result<Vec<Vec<f64>>, String> {
        let (mut values, mut first, mut second) = (start.clone(), vec![0.0; start.len()], vec![0.0; start.len()]);
        if project {
            values = clamp(&values);
        }
        let mut trajectory = Vec::new();
        for (step, gradient) in (1..).zip(gradients.chunks(start.len().max(1))) {
            let settings = adam::AdamWUpdate {
                lr: number(params, "lr")?,
                beta1: betas[0],
                beta2: betas[1],
                epsilon: number(params, "eps")?,
                weight_decay: 0.0,
                step,
                gradient_scale: 1.0,
            };
            adam::update(&settings, &mut values, gradient, &mut first, &mut second);
            if project {
                values = clamp(&values);
            }
            trajectory.push(values.clone());
        }
        Ok(trajectory)
    };
    let (projected, free) = (run(true)?, run(false)?);
    let view: Vec<Vec<f64>> = free.iter().map(|values| clamp(values)).collect();
    let mut score = Score::new("adam f64");
    for (key, got) in [("projected", projected), ("master", free), ("view", view)] {
        score.compare(key, &got.concat(), &case.numbers(folder, "expected", key)?.values, case.tolerance(""));
    }
    Ok(vec![score])
}

pub fn ttest(folder: &Folder, case: &Case) -> Scores {
    let (x, y) = (case.numbers(folder, "inputs", "x")?, case.numbers(folder, "inputs", "y")?);
    let test = statistics::paired_t_test(&x.values, &y.values).map_err(|why| why.to_string())?;
    let expected = case.get("expected");
    let mut score = Score::new("paired t-test");
    score.compare("t", &[test.t], &[number(expected, "t")?], case.tolerance(""));
    score.compare("p", &[test.p], &[number(expected, "p")?], case.tolerance(""));
    score.compare("df", &[test.df as f64], &[number(expected, "df")?], EXACT);
    score.equal("dagger", Some(test.first_is_larger(0.05)), expected["dagger"].as_bool());
    Ok(vec![score])
}

pub fn perplexity(folder: &Folder, case: &Case) -> Scores {
    let nll = case.numbers(folder, "inputs", "nll")?;
    let &[_, positions] = nll.shape.as_slice() else { return Err("nll is not [segments, positions]".to_owned()) };
    let mut score = Score::new("perplexity");
    let expected = number(case.get("expected"), "ppl")?;
    score.compare("ppl", &[statistics::perplexity(&nll.values)], &[expected], case.tolerance(""));
    let by_position = statistics::position_perplexity(&nll.values, positions);
    score.compare(
        "positionwise",
        &by_position,
        &case.numbers(folder, "expected", "positionwise")?.values,
        case.tolerance(""),
    );
    Ok(vec![score])
}
