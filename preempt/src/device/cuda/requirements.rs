//! The requirements on a GPU and its driver.

use preempt_device::abi::MAX_SMS;

use super::context::Context;
use super::driver::DeviceAttribute;
use crate::device::Properties;
use crate::error::{DeviceError, Error};

/// Compute capability, at least: the worker loop uses its memory operations and barriers.
const LEAST_CAPABILITY: u32 = 8;

/// Refuses a device that does not meet the requirements.
pub(super) fn check(context: &Context) -> Result<Properties, Error> {
    use DeviceAttribute::*;
    let properties = context.properties()?;
    if let Some((major, minor)) = properties.compute_capability
        && major < LEAST_CAPABILITY
    {
        let reason = format!(
            "it has compute capability {major}.{minor}; {LEAST_CAPABILITY}.0 or more is needed"
        );
        return Err(Error::Device(DeviceError::Unsupported { reason: reason.into() }));
    }
    for (attribute, what) in [
        (
            CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
            "one address space with the host, through which the device reports",
        ),
        (
            CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
            "access to the host's memory, through which it reports",
        ),
        (
            CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
            "64-bit stream memory operations, which carry the signals to stop",
        ),
        (
            CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            "memory pools, without which memory is not freed while kernels run",
        ),
    ] {
        if context.attribute(attribute)? == 0 {
            let reason = format!("it, or its driver, lacks {what}");
            return Err(Error::Device(DeviceError::Unsupported { reason: reason.into() }));
        }
    }
    if properties.sms > MAX_SMS {
        let reason = format!("it has {} SMs, and a signal can name {MAX_SMS}", properties.sms);
        return Err(Error::Device(DeviceError::Unsupported { reason: reason.into() }));
    }
    Ok(properties)
}
