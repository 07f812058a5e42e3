//! Command lines: words as a shell splits them, over several lines, with comments.

/// Leaves out the lines whose first character is `#`.
pub(super) fn strip_comments(text: &str) -> String {
    if !text.contains('#') {
        return text.to_owned();
    }
    let kept: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    kept.join("\n")
}

/// Why a command cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsplit {
    /// There is no word in it.
    Empty,
    /// A quote has no end.
    OpenQuote,
}

/// Splits a command line into a program and its arguments. A line's end is a space, with or without a `\` before it.
///
/// # Errors
/// When a quote is not closed or there is no word.
pub(super) fn split(text: &str) -> Result<Vec<String>, Unsplit> {
    let joined = strip_comments(text)
        .lines()
        .map(|line| line.trim_end().strip_suffix('\\').unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n");
    match shell_words::split(&joined) {
        Ok(words) if words.is_empty() => Err(Unsplit::Empty),
        Ok(words) => Ok(words),
        Err(_) => Err(Unsplit::OpenQuote),
    }
}
