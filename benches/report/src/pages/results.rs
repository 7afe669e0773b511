//! One file of results, and a folder of them.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::chart::Picture;
use crate::pictures::{ensure_picture, parse, picture};

/// The folder that results are in.
#[derive(Debug)]
pub struct Folder(PathBuf);

/// A file that `preempt-bench --out` wrote, or an example's `--out`.
#[derive(Debug)]
pub struct Results {
    /// The file's name.
    pub file: String,
    value: Value,
}

impl Folder {
    /// The folder with this path.
    pub fn new(path: PathBuf) -> Folder {
        Folder(path)
    }

    /// The names of all results without `.json`, sorted.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read, or holds no results.
    pub fn names(&self) -> Result<Vec<String>> {
        let told = || format!("{} cannot be read", self.0.display());
        let files: io::Result<Vec<_>> = fs::read_dir(&self.0).with_context(told)?.collect();
        let paths = files.with_context(told)?.into_iter().map(|entry| entry.path());
        let is_result = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        let stem = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        let mut names: Vec<_> = paths.filter(is_result).filter_map(stem).collect();
        ensure!(!names.is_empty(), "{} holds no results", self.0.display());
        names.sort();
        Ok(names)
    }

    /// The results of this name, which has no `.json`.
    ///
    /// # Errors
    ///
    /// If there is no such file, or if it holds no JSON.
    pub fn get(&self, name: &str) -> Result<Results> {
        Results::read(&self.0.join(format!("{name}.json")))
    }

    /// The same of results that may not be there yet: `None` then.
    ///
    /// # Errors
    ///
    /// If there is such a file, and it cannot be read or holds no JSON.
    pub fn find(&self, name: &str) -> Result<Option<Results>> {
        let path = self.0.join(format!("{name}.json"));
        if path.try_exists()? { Results::read(&path).map(Some) } else { Ok(None) }
    }
}

impl Results {
    fn read(path: &Path) -> Result<Results> {
        let told = || format!("{}", path.display());
        let text = fs::read_to_string(path).context("cannot be read").with_context(told)?;
        let value = serde_json::from_str(&text).context("is no JSON").with_context(told)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Results { file, value })
    }

    /// All that is in the file.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The text at the top level with this key, if there is one.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.value[key].as_str()
    }

    /// The short name of the GPU, as `H100` for `NVIDIA H100 80GB HBM3`.
    ///
    /// # Errors
    ///
    /// If it was not measured on a GPU of NVIDIA.
    pub fn gpu(&self) -> Result<&str> {
        let device = self.text("device").unwrap_or_default();
        let name = device.strip_prefix("NVIDIA ").and_then(|name| name.split(' ').next());
        name.with_context(|| format!("{}: `{device}` is no GPU of NVIDIA", self.file))
    }

    /// A number of the summary. A dot in the key leads into an object.
    ///
    /// # Errors
    ///
    /// If the summary has no such number.
    pub fn number(&self, key: &str) -> Result<f64> {
        let number = self.value["summary"].get(key).and_then(Value::as_f64);
        number.with_context(|| format!("{}: the summary has no number `{key}`", self.file))
    }

    /// All rows.
    ///
    /// # Errors
    ///
    /// If a row lacks a field.
    pub fn rows<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        self.rows_with("/")
    }

    /// The rows that have this field; a suite can write rows of different kinds.
    ///
    /// # Errors
    ///
    /// If there is none, or if one of them lacks a field.
    pub fn rows_with<T: DeserializeOwned>(&self, field: &str) -> Result<Vec<T>> {
        self.rows_that(&format!("has `{field}`"), |row| field == "/" || row.get(field).is_some())
    }

    /// The same of rows that results of before they were measured do not have: none of them then.
    ///
    /// # Errors
    ///
    /// If a row lacks a field.
    pub fn rows_with_any<T: DeserializeOwned>(&self, field: &str) -> Result<Vec<T>> {
        let mut rows = self.value["rows"].as_array().into_iter().flatten();
        if rows.any(|row| row.get(field).is_some()) {
            self.rows_with(field)
        } else {
            Ok(Vec::new())
        }
    }

    /// The rows of this figure.
    ///
    /// # Errors
    ///
    /// If there is none, or if one of them lacks a field.
    pub fn rows_of<T: DeserializeOwned>(&self, figure: &str) -> Result<Vec<T>> {
        self.rows_that(&format!("is of figure {figure}"), |row| row["figure"] == figure)
    }

    fn rows_that<T: DeserializeOwned>(
        &self,
        what: &str,
        is_wanted: impl Fn(&Value) -> bool,
    ) -> Result<Vec<T>> {
        let Some(rows) = self.value["rows"].as_array() else {
            bail!("{}: the results have no rows", self.file);
        };
        let rows: Vec<Value> = rows.iter().filter(|row| is_wanted(row)).cloned().collect();
        ensure!(!rows.is_empty(), "{}: no row {what}", self.file);
        parse(&rows).with_context(|| self.file.clone())
    }

    /// The picture of it, beside it. There are pictures of what was measured on a GPU, where its suite has one, and of the
    /// engine, which needs none.
    ///
    /// # Errors
    ///
    /// If it is not as its suite writes it.
    pub fn picture(&self) -> Result<Option<Picture>> {
        self.has_picture()
            .then(|| picture(&self.value).with_context(|| self.file.clone()))
            .transpose()
    }

    fn has_picture(&self) -> bool {
        let suite = self.text("suite").unwrap_or_default();
        let is_there = self.file.ends_with("-gpu.json") || suite == "engine";
        is_there && ensure_picture(suite).is_ok()
    }

    /// The name of the file that its picture is in.
    pub fn svg(&self) -> String {
        self.file.replace(".json", ".svg")
    }

    /// The link to the picture, if there is one, and where and how it was measured: a line below a table.
    pub fn source(&self) -> String {
        match self.has_picture() {
            true => format!("[Picture](results/{}). {}", self.svg(), self.measured()),
            false => self.measured(),
        }
    }

    /// Where and how it was measured, as a line below a table.
    pub fn measured(&self) -> String {
        let driver = self.text("driver").map(|driver| format!("driver {driver}"));
        let commit = self.text("commit").map(|commit| format!("commit {commit}"));
        let plain = |key| self.text(key).map(str::to_owned);
        let command = self.text("command").map(|command| format!("`{command}`"));
        let told = [plain("device"), driver, plain("hardware"), commit, plain("date"), command];
        let told: Vec<_> = told.into_iter().flatten().collect();
        let file = &self.file;
        format!("From [{file}](results/{file}): {}.\n", told.join("; "))
    }
}
