//! Long and urgent softmaxes of candle's on one GPU: by candle alone, and with preempt.

use candle_core::{Device, Result, Tensor};

#[cfg(feature = "cuda")]
mod gpu;
mod softmax;
#[cfg(feature = "cuda")]
mod times;

use softmax::Softmax;

fn main() -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let x = Tensor::randn(0f32, 1., (64, 1000), &Device::Cpu)?;
    println!("largest difference on the host: {:e}", difference(&x, &Softmax::default())?);
    #[cfg(feature = "cuda")]
    return match preempt::Device::count() {
        Ok(0) => {
            println!("Nothing was measured: there is no GPU.");
            Ok(())
        }
        Err(error) => {
            println!("Nothing was measured: {error}.");
            Ok(())
        }
        Ok(_) => times::run(),
    };
    #[cfg(not(feature = "cuda"))]
    {
        println!(
            "Nothing was measured: the feature `cuda` is off, which takes a CUDA toolkit to build."
        );
        Ok(())
    }
}

/// The largest difference to candle's own softmax.
fn difference(x: &Tensor, op: &Softmax) -> Result<f32> {
    let (one, other) = (x.apply_op1_no_bwd(op)?, candle_nn::ops::softmax_last_dim(x)?);
    (one - other)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

#[test]
fn the_operation_is_candles_on_the_host() -> Result<()> {
    let x = Tensor::randn(0f32, 3., (7, 5, 33), &Device::Cpu)?;
    assert!(difference(&x, &Softmax::default())? < 1e-6);
    // Rows that are not next to each other are refused, and so are none.
    let columns = x.transpose(1, 2)?.apply_op1_no_bwd(&Softmax::default());
    assert!(columns.is_err_and(|error| error.to_string().contains("contiguous")));
    let none = Tensor::zeros((3, 0), candle_core::DType::F32, &Device::Cpu)?;
    assert!(none.apply_op1_no_bwd(&Softmax::default()).is_err());
    Ok(())
}
