//! Schedules, optimizer updates and statistics.

use crate::case::Case;
use crate::{CaseComparison, CaseResult, Checked, EXACT};
use kerple_core::ops::adam;
use kerple_lm::schedule::LrScheduler;
use kerple_report::statistics;

pub fn schedule(case: &Case) -> CaseResult {
    let schedule = LrScheduler {
        lr_cycle_steps: 0,
        learning_rate: case.number("start_lr")?,
        min_lr: case.number("min_lr")?,
        steps: case.number("total_iters")? as u64,
        warmup_ratio: case.number("warmup")?,
        lr_schedule: serde_json::from_value(case.setting("decay_style").clone()).map_err(|error| error.to_string())?,
    };
    let steps = case.expected("steps")?;
    let got: Vec<f64> = steps.iter().map(|step| schedule.at(*step as u64)).collect();
    let mut comparison = CaseComparison::new("schedule");
    case.compare(&mut comparison, "lr", &got, case.tolerance(""))?;
    Ok(vec![comparison])
}

/// Adam on parameters with a range: projected after each step, or free with a clamped working copy.
pub fn adam(case: &Case) -> CaseResult {
    let start = case.input("p0")?;
    let gradients = case.input("grads")?;
    let (low, high) = (case.number("lo")?, case.number("hi")?);
    let beta = |at: usize| case.setting("betas")[at].as_f64().ok_or_else(|| "betas are missing".to_owned());
    let betas = [beta(0)?, beta(1)?];
    let clamp = |values: &[f64]| values.iter().map(|value| value.clamp(low, high)).collect::<Vec<f64>>();
    let run = |project: bool| -> Checked<Vec<Vec<f64>>> {
        let (mut values, mut first, mut second) = (start.clone(), vec![0.0; start.len()], vec![0.0; start.len()]);
        if project {
            values = clamp(&values);
        }
        let mut trajectory = Vec::new();
        for (step, gradient) in (1..).zip(gradients.chunks(start.len().max(1))) {
            let settings = adam::AdamWUpdate {
                lr: case.number("lr")?,
                beta1: betas[0],
                beta2: betas[1],
                epsilon: case.number("eps")?,
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
    let mut comparison = CaseComparison::new("adam f64");
    for (key, got) in [("projected", projected), ("master", free), ("view", view)] {
        case.compare(&mut comparison, key, &got.concat(), case.tolerance(""))?;
    }
    Ok(vec![comparison])
}

pub fn ttest(case: &Case) -> CaseResult {
    let test = statistics::paired_t_test(&case.input("x")?, &case.input("y")?).map_err(|why| why.to_string())?;
    let mut comparison = CaseComparison::new("paired t-test");
    case.compare(&mut comparison, "t", &[test.t], case.tolerance(""))?;
    case.compare(&mut comparison, "p", &[test.p], case.tolerance(""))?;
    case.compare(&mut comparison, "df", &[test.df as f64], EXACT)?;
    comparison.equal("dagger", Some(test.first_is_larger(0.05)), case.get("expected")["dagger"].as_bool());
    Ok(vec![comparison])
}

pub fn perplexity(case: &Case) -> CaseResult {
    let ([_, positions], nll) = (case.shape("nll")?, case.input("nll")?);
    let mut comparison = CaseComparison::new("perplexity");
    case.compare(&mut comparison, "ppl", &[statistics::perplexity(&nll)], case.tolerance(""))?;
    let by_position = statistics::position_perplexity(&nll, positions);
    case.compare(&mut comparison, "positionwise", &by_position, case.tolerance(""))?;
    Ok(vec![comparison])
}
