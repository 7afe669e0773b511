//! The committed weights: their accuracy and their reproduction.

use urgent_inference::digits::{self, COUNT, HELD_OUT, Sample};
use urgent_inference::network::Network;
use urgent_inference::training::{EPOCHS, SEED, train};

fn split() -> (Vec<Sample>, Vec<Sample>) {
    digits::load().unwrap().into_iter().partition(|sample| sample.held_out)
}

#[test]
fn a_quarter_is_held_out() {
    let (held_out, training) = split();
    assert_eq!((held_out.len(), training.len()), (HELD_OUT, COUNT - HELD_OUT));
    for label in 0..10 {
        assert!(held_out.iter().filter(|sample| sample.label == label).count() > 30);
    }
}

#[test]
fn committed_weights_read_digits_that_they_have_not_seen() {
    let (held_out, _) = split();
    let accuracy = Network::committed().unwrap().accuracy(&held_out);
    assert!(accuracy >= 0.96, "accuracy {accuracy}");
}

#[test]
fn training_gives_the_committed_weights_again() {
    let (_, training) = split();
    assert!(train(&training, SEED, EPOCHS) == Network::committed().unwrap(), "other weights");
}

#[test]
fn weights_of_another_shape_are_refused() {
    let bytes = Network::committed().unwrap().to_bytes();
    assert!(Network::from_bytes(&bytes).is_ok());
    assert!(Network::from_bytes(&bytes[..bytes.len() - 4]).is_err());
    assert!(Network::from_bytes(&bytes[..10]).is_err());
    assert!(Network::from_bytes(&[]).is_err());
    let mut other = bytes;
    other[8] += 1;
    assert!(Network::from_bytes(&other).is_err());
}
