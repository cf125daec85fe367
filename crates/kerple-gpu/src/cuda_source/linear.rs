//! Linear attention without a decay, with gates, and with a table plus a learned sum of
//! exponentials; the features are twice as many as the features per head.

use super::{HOPPER, Source, Writer, array};
use crate::attention::EACH;
use crate::linear::{Dims, Form, SizesCompilationArg, Terms, rows, sums, tile_for};
use cubecl::CompilationError;

impl Writer {
    pub(super) fn linear(&self, head_dim: usize) -> Result<Vec<Source>, CompilationError> {
        let (features, values) = ((2 * head_dim).min(256), head_dim + 1);
        let dims = Dims { batch: 1, heads: 1, len: 1, features, values };
        let tile = tile_for(dims, HOPPER);
        let form = |terms, fades, gates| Form {
            rows: tile.over(features),
            values: tile.over(values),
            terms,
            near: fades,
            weights: fades,
            gates,
        };
        let plain = self.of_form("plain", form(Terms { terms: 1, shapes: 1 }, false, false))?;
        let gated = self.of_form("gated", form(Terms { terms: 1, shapes: 1 }, false, true))?;
        let fading = self.of_form("fading", form(Terms { terms: 24, shapes: 7 }, true, false))?;
        Ok([plain, gated, fading].concat())
    }

    fn of_form(&self, what: &str, form: Form) -> Result<Vec<Source>, CompilationError> {
        let (units, a) = (form.rows.units(), array);
        let sizes =
            || SizesCompilationArg { heads: (), len: (), chunks: (), apart: (), first: (), terms: (), shapes: () };
        let gather = |s, p, t| sums::gather::Gather::new(s, p, t, a(), a(), a(), a(), a(), sizes(), false, form);
        let pass = |s, p, t| sums::pass::Pass::new(s, p, t, a(), a(), a(), a(), sizes(), true, form);
        let weigh = |turned| {
            let form = if turned { form.crossed() } else { form };
            move |s, p, t| {
                rows::weigh::Weigh::new(s, p, t, a(), a(), a(), a(), a(), a(), a(), a(), sizes(), turned, turned, form)
            }
        };
        let mut found = vec![
            self.source(&format!("gather_{what}"), units, gather)?,
            self.source(&format!("pass_{what}"), EACH, pass)?,
            self.source(&format!("weigh_{what}"), units, weigh(false))?,
            self.source(&format!("weigh_turned_{what}"), units, weigh(true))?,
        ];
        if form.near {
            let of_weights =
                |s, p, t| sums::of_weights::OfWeights::new(s, p, t, a(), a(), a(), a(), sizes(), EACH, form);
            let of_near = |s, p, t| rows::of_near::OfNear::new(s, p, t, a(), a(), a(), a(), a(), sizes(), form);
            found.push(self.source(&format!("of_weights_{what}"), EACH, of_weights)?);
            found.push(self.source(&format!("of_near_{what}"), units, of_near)?);
        }
        Ok(found)
    }
}
