//! Numbers of SMs on a part of a GPU. The hardware numbers the SMs of the whole GPU, and those of a part have gaps between
//! them; grants are ranges. So code for a part looks up its SM's number among those of the part.

use std::ffi::CStr;

use crate::text::{Edit, blanked, edited, word_after};

/// The variable that has the number of each SM, by its number in hardware.
pub const SM_NUMBERS: &CStr = c"preempt_sm_numbers";

/// SMs that the variable has numbers for. The hardware's numbers are less.
pub const MOST_SM_NUMBERS: usize = 1024;

const REGISTER: &str = "%smid";

/// `ptx` whose code has SMs numbered by the variable [`SM_NUMBERS`], of which each element has two bytes. Without code that
/// asks for its SM, `ptx` as it is, and `None`.
///
/// # Errors
///
/// The statement that asks for the SM in a way that no compiler is known to, or the missing directive.
pub fn with_sm_numbers(ptx: &str) -> Result<Option<String>, String> {
    let text = blanked(ptx);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_$%".contains(byte);
    let asks = text.match_indices(REGISTER).map(|(at, _)| at).filter(|&at| {
        let after = text.as_bytes().get(at + REGISTER.len());
        !after.is_some_and(is_name)
            && !at.checked_sub(1).map(|at| &text.as_bytes()[at]).is_some_and(is_name)
    });
    let mut edits = asks.map(|at| looked_up(&text, at)).collect::<Result<Vec<_>, _>>()?;
    if edits.is_empty() {
        return Ok(None);
    }
    let (place, _) = word_after(&text, ".address_size").ok_or("no `.address_size`")?;
    let name = SM_NUMBERS.to_string_lossy();
    edits.push(Edit {
        place: place.end..place.end,
        text: format!("\n.visible .global .align 2 .b8 {name}[{}];", 2 * MOST_SM_NUMBERS),
    });
    Ok(Some(edited(ptx, edits)))
}

/// The statement that reads the register at this place, with the number looked up ahead of it.
fn looked_up(text: &str, at: usize) -> Result<Edit, String> {
    let is_end = |c: char| matches!(c, ';' | '{' | '}' | ':');
    let start = text[..at].rfind(is_end).map_or(0, |end| end + 1);
    let end = text[at..].find(';').map_or(text.len(), |end| at + end);
    let start = end - text[start..end].trim_start().len();
    let statement = &text[start..end];
    let unknown = || format!("`{}`", statement.trim());
    let (guard, rest) = match statement.strip_prefix('@') {
        Some(rest) => {
            rest.split_once(char::is_whitespace).map(|(guard, rest)| (format!("@{guard} "), rest))
        }
        None => Some((String::new(), statement)),
    }
    .ok_or_else(unknown)?;
    let rest = rest.trim_start();
    let operands = rest
        .strip_prefix("mov.u32")
        .or_else(|| rest.strip_prefix("mov.b32"))
        .ok_or_else(unknown)?;
    let (to, from) = operands.split_once(',').ok_or_else(unknown)?;
    if from.trim() != REGISTER || to.trim().contains(|c: char| c.is_whitespace() || is_end(c)) {
        return Err(unknown());
    }
    let (to, name) = (to.trim(), SM_NUMBERS.to_string_lossy());
    let text = format!(
        "{{ .reg .b32 %preempt_sm; .reg .b64 %preempt_at, %preempt_numbers; mov.u32 %preempt_sm, {REGISTER}; \
         mul.wide.u32 %preempt_at, %preempt_sm, 2; mov.u64 %preempt_numbers, {name}; \
         add.u64 %preempt_at, %preempt_at, %preempt_numbers; ld.global.nc.u16 %preempt_sm, [%preempt_at]; \
         {guard}mov.u32 {to}, %preempt_sm; }}"
    );
    // With the semicolon.
    Ok(Edit { place: start..end + 1, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.8\n.target sm_80\n.address_size 64\n";

    #[test]
    fn each_question_for_the_sm_is_answered_from_the_variable() {
        let text = format!(
            "{HEAD}.visible .entry k() {{\n\t.reg .b32 %r<4>;\n\t// %smid\n\tmov.u32 \t%r1, %smid;\nL: @!%p1 mov.u32 %r2, \
             %smid;\n\tmov.u32 %r3, %nsmid;\n\tret;\n}}\n"
        );
        let with = with_sm_numbers(&text).expect("known").expect("asks");
        assert_eq!(with.matches("ld.global.nc.u16 %preempt_sm").count(), 2, "{with}");
        assert!(
            with.contains("@!%p1 mov.u32 %r2, %preempt_sm; }\n\tmov.u32 %r3, %nsmid;"),
            "{with}"
        );
        assert!(with.contains("mov.u32 %r1, %preempt_sm; }\nL: {"), "{with}");
        assert_eq!(with.matches(".b8 preempt_sm_numbers[2048];").count(), 1, "{with}");
        crate::read(&with).expect("PTX");
    }

    #[test]
    fn what_does_not_ask_stays_and_what_asks_otherwise_is_refused() {
        let of =
            |statement: &str| with_sm_numbers(&format!("{HEAD}.entry k() {{ {statement} ret; }}"));
        assert_eq!(of("mov.u32 %r1, %smid2;"), Ok(None));
        for statement in
            ["add.u32 %r1, %smid, 1;", "mov.b64 %rd1, {%r1, %smid};", "@%p1 add.u32 %r1, %smid, 1;"]
        {
            let refused = of(statement).expect_err(statement);
            assert!(refused.contains("%smid"), "{refused}");
        }
        assert!(with_sm_numbers(".entry k() { mov.u32 %r1, %smid; }").is_err(), "without a size");
    }
}
