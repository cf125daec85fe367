//! Training on sequences that are longer than what there is room for: piece by piece, where layers keep a state of fixed size.
//!
//! ```text
//! forwards, outside autodiff:   the state of every layer in front of every piece
//! backwards, from the last:     a piece's loss and its gradient; the layers leave for the piece before what it needs of this one
//! ```
//!
//! The gradients are those of whole sequences up to rounding. Room is needed for one piece, and for a state a piece.

use super::{Decoder, Tokens, columns};
use burn::tensor::Tensor;
use kerple_burn::forms::Positions;
use kerple_burn::ops::linear_attention::{Behind, Piece};
use kerple_burn::ops::loss::{self, Targets};
use kerple_burn::parameters;
use kerple_burn::pass::Pass;

impl Decoder {
    /// [`Decoder::weighted_loss`] as a sum over pieces of `each` positions, which are handed to `learn` from the last to the first.
    /// It makes the gradient of each before it returns. Without dropout; models whose memory grows take everything at once.
    pub fn loss_in_pieces(
        &self,
        tokens: Tokens,
        targets: Targets,
        share: f64,
        (each, pass): (usize, &Pass),
        learn: &mut dyn FnMut(Tensor<1>),
    ) {
        let Tokens { ids, batch, len } = tokens;
        let plain = parameters::without_autodiff(self);
        let (mut memory, pass) = (plain.memories(batch), pass.over(len));
        let behind: Vec<Behind> = self.blocks.iter().map(|_| Behind::default()).collect();
        let starts = || (0..len).step_by(each);
        let mut pieces = Vec::new();
        for start in starts() {
            let layers: Option<Vec<Piece>> =
                memory.iter().zip(&behind).map(|(own, behind)| own.piece(behind)).collect();
            let Some(layers) = layers else { return learn(self.weighted_loss(tokens, targets, share, &pass)) };
            pieces.push(layers);
            if start + each < len {
                let ids = columns(ids, len, start..start + each);
                plain.remember(Tokens { ids: &ids, batch, len: each }, &mut memory, &pass);
            }
        }
        for (start, layers) in starts().zip(pieces).rev() {
            let range = start..len.min(start + each);
            let [ids, own] = [ids, targets.ids].map(|all| columns(all, len, range.clone()));
            let scored = targets.scored.map(|scored| columns(scored, len, range.clone()));
            let (mut x, positions) = self.embedded(Tokens { ids: &ids, batch, len: range.len() }, start, &pass);
            for ((block, positions), piece) in self.blocks.iter().zip(positions).zip(layers) {
                let positions = Positions { piece: Some(piece), ..positions };
                x = block.forward(x, &positions, &pass, self.engine);
            }
            let targets = Targets { ids: &own, scored: scored.as_deref() };
            learn(loss::loss(x, self.output(), targets, share, self.engine));
        }
    }
}
