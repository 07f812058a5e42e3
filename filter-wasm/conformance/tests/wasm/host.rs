//! As much of a proxy-wasm host (ABI 0.2.1) as the filter needs, and no more.

use switchyard_policy_conformance::{Headers, NOW_UNIX, Outcome};
use wasmi::{Caller, Error, Extern, ExternType, Func, Instance, Linker, Memory, Module, Store, Val};

const OK: u32 = 0;
const ROOT: u32 = 1;
const CONFIGURATION: u32 = 7;

/// Header names and values as a host has them: bytes, names in lower case.
pub(crate) type RawHeaders = Vec<(Vec<u8>, Vec<u8>)>;

/// An answer that the filter gave in place of the upstream.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: RawHeaders,
    pub(crate) body: Vec<u8>,
}

/// What the host keeps for the guest.
#[derive(Default)]
pub(crate) struct State {
    settings: Vec<u8>,
    headers: RawHeaders,
    answer: Option<Answer>,
    /// The lines that the filter logged, with their levels; 1 is debug, 5 critical.
    pub(crate) log: Vec<(u32, String)>,
    /// Counters by id.
    pub(crate) metrics: Vec<(String, i64)>,
    log_level: u32,
}

/// One VM with one plugin in it.
pub(crate) struct Filter {
    store: Store<State>,
    instance: Instance,
    next_context: u32,
}

impl Filter {
    /// Starts a VM and configures it; the second is what `on_configure` said.
    pub(crate) fn start(wasm: &Module, settings: &str, log_level: u32) -> (Self, bool) {
        let state = State { settings: settings.as_bytes().to_vec(), log_level, ..State::default() };
        let mut store = Store::new(wasm.engine(), state);
        let linker = linker(wasm, &mut store).expect("host functions as the filter imports them");
        let instance = linker.instantiate_and_start(&mut store, wasm).expect("the filter starts");
        let mut filter = Self { store, instance, next_context: ROOT + 1 };
        filter.call("_initialize", &[]);
        filter.call("proxy_on_context_create", &[ROOT, 0]);
        assert_eq!(filter.call("proxy_on_vm_start", &[ROOT, 0]), 1, "on_vm_start");
        let configured = filter.call("proxy_on_configure", &[ROOT, settings.len() as u32]) == 1;
        (filter, configured)
    }

    /// Sends a request of the table through.
    pub(crate) fn request(&mut self, method: &str, path: &[u8], headers: &Headers) -> Outcome {
        let pseudo =
            [(":method", method.as_bytes()), (":path", path)].map(|(name, value)| (name.into(), value.to_vec()));
        let lower = headers.iter().map(|(name, value)| (name.to_ascii_lowercase().into(), value.trim_ascii().to_vec()));
        match self.exchange(pseudo.into_iter().chain(lower).collect()) {
            Err(answer) => Outcome::Denied { status: answer.status, body: answer.body },
            Ok(headers) => {
                let text = |name| String::from_utf8(name).expect("the table's names are text");
                let headers = headers.into_iter().filter(|(name, _)| !name.starts_with(b":"));
                Outcome::Passed(headers.map(|(name, value)| (text(name), value)).collect())
            }
        }
    }

    /// Sends headers through: those that go upstream, or the answer.
    pub(crate) fn exchange(&mut self, headers: RawHeaders) -> Result<RawHeaders, Answer> {
        let context = self.begin();
        let count = headers.len() as u32;
        self.store.data_mut().headers = headers;
        let paused = self.call("proxy_on_request_headers", &[context, count, 0]) == 1;
        self.end(context);
        let state = self.store.data_mut();
        assert_eq!(paused, state.answer.is_some(), "a request is held if and only if it was answered");
        state.answer.take().map_or_else(|| Ok(std::mem::take(&mut state.headers)), Err)
    }

    /// Begins a request that has no headers yet.
    pub(crate) fn begin(&mut self) -> u32 {
        let context = self.next_context;
        self.next_context += 1;
        self.call("proxy_on_context_create", &[context, ROOT]);
        context
    }

    /// Ends a request.
    pub(crate) fn end(&mut self, context: u32) {
        self.call("proxy_on_delete", &[context]);
    }

    /// Bytes of memory that the VM has taken.
    pub(crate) fn memory_bytes(&self) -> usize {
        let memory = self.instance.get_memory(&self.store, "memory").expect("an exported memory");
        memory.data_size(&self.store)
    }

    /// What the host keeps.
    pub(crate) fn state(&mut self) -> &mut State {
        self.store.data_mut()
    }

    /// Calls an export. A trap fails the test: nothing that a request contains may cause one.
    fn call(&mut self, name: &str, arguments: &[u32]) -> i32 {
        let function = self.instance.get_func(&self.store, name).unwrap_or_else(|| panic!("no export {name}"));
        let arguments: Vec<_> = arguments.iter().map(|&argument| Val::I32(argument as i32)).collect();
        let mut results = vec![Val::I32(0); function.ty(&self.store).results().len()];
        function.call(&mut self.store, &arguments, &mut results).unwrap_or_else(|trap| panic!("{name}: {trap}"));
        results.first().and_then(Val::i32).unwrap_or(0)
    }
}

type Guest<'a> = Caller<'a, State>;

fn linker(module: &Module, store: &mut Store<State>) -> Result<Linker<State>, Error> {
    let mut linker = Linker::new(module.engine());
    // What the filter imports without ever calling it in these tests, WASI included, answers 0.
    for import in module.imports() {
        if let ExternType::Func(ty) = import.ty() {
            let zeros = |_: Guest<'_>, _: &[Val], results: &mut [Val]| {
                results.fill(Val::I32(0));
                Ok(())
            };
            let stub = Func::new(&mut *store, ty.clone(), zeros);
            linker.define(import.module(), import.name(), stub)?;
        }
    }
    linker.allow_shadowing(true);
    define_basics(&mut linker)?;
    define_http(&mut linker)?;
    Ok(linker)
}

fn define_basics(linker: &mut Linker<State>) -> Result<(), Error> {
    linker.func_wrap("env", "proxy_get_log_level", |mut guest: Guest<'_>, out: u32| {
        let level = guest.data().log_level;
        write(&mut guest, out, &level.to_le_bytes())
    })?;
    linker.func_wrap("env", "proxy_log", |mut guest: Guest<'_>, level: u32, data: u32, size: u32| {
        let line = String::from_utf8_lossy(&read(&guest, data, size)).into_owned();
        guest.data_mut().log.push((level, line));
        OK
    })?;
    linker.func_wrap("env", "proxy_get_current_time_nanoseconds", |mut guest: Guest<'_>, out: u32| {
        write(&mut guest, out, &(NOW_UNIX as u64 * 1_000_000_000).to_le_bytes())
    })?;
    linker.func_wrap(
        "env",
        "proxy_get_buffer_bytes",
        |mut guest: Guest<'_>, kind: u32, _start: u32, _max: u32, data: u32, size: u32| {
            assert_eq!(kind, CONFIGURATION);
            let settings = std::mem::take(&mut guest.data_mut().settings);
            hand_over(&mut guest, &settings, data, size)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_define_metric",
        |mut guest: Guest<'_>, _kind: u32, data: u32, size: u32, out: u32| {
            let name = String::from_utf8_lossy(&read(&guest, data, size)).into_owned();
            guest.data_mut().metrics.push((name, 0));
            let id = guest.data().metrics.len() as u32 - 1;
            write(&mut guest, out, &id.to_le_bytes())
        },
    )?;
    linker.func_wrap("env", "proxy_increment_metric", |mut guest: Guest<'_>, id: u32, by: i64| {
        guest.data_mut().metrics[id as usize].1 += by;
        OK
    })?;
    Ok(())
}

fn define_http(linker: &mut Linker<State>) -> Result<(), Error> {
    linker.func_wrap(
        "env",
        "proxy_get_header_map_pairs",
        |mut guest: Guest<'_>, _map: u32, data: u32, size: u32| {
            let map = serialize(&guest.data().headers);
            hand_over(&mut guest, &map, data, size)
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_remove_header_map_value",
        |mut guest: Guest<'_>, _map: u32, name: u32, size: u32| {
            let name = read(&guest, name, size);
            guest.data_mut().headers.retain(|(known, _)| *known != name.to_ascii_lowercase());
            OK
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_add_header_map_value",
        |mut guest: Guest<'_>, _map: u32, name: u32, name_size: u32, value: u32, value_size: u32| {
            let (name, value) = (read(&guest, name, name_size), read(&guest, value, value_size));
            guest.data_mut().headers.push((name, value));
            OK
        },
    )?;
    linker.func_wrap(
        "env",
        "proxy_send_local_response",
        |mut guest: Guest<'_>,
         status: u32,
         _: u32,
         _: u32,
         body: u32,
         body_size: u32,
         map: u32,
         map_size: u32,
         _: u32| {
            let (body, map) = (read(&guest, body, body_size), read(&guest, map, map_size));
            let (status, headers) = (status as u16, deserialize(&map));
            guest.data_mut().answer = Some(Answer { status, headers, body });
            OK
        },
    )?;
    Ok(())
}

fn memory(guest: &Guest<'_>) -> Memory {
    guest.get_export("memory").and_then(Extern::into_memory).expect("an exported memory")
}

fn read(guest: &Guest<'_>, at: u32, size: u32) -> Vec<u8> {
    memory(guest).data(guest)[at as usize..(at + size) as usize].to_vec()
}

fn write(guest: &mut Guest<'_>, at: u32, bytes: &[u8]) -> u32 {
    memory(guest).write(guest, at as usize, bytes).expect("within the memory");
    OK
}

/// Copies bytes into a buffer that the guest allocates, and tells it where.
fn hand_over(guest: &mut Guest<'_>, bytes: &[u8], data: u32, size: u32) -> u32 {
    let allocate = guest.get_export("proxy_on_memory_allocate").and_then(Extern::into_func).expect("an allocator");
    let allocate = allocate.typed::<u32, u32>(&*guest).expect("size to address");
    let at = allocate.call(&mut *guest, bytes.len() as u32).expect("enough memory");
    write(guest, at, bytes);
    write(guest, data, &at.to_le_bytes());
    write(guest, size, &(bytes.len() as u32).to_le_bytes())
}

fn serialize(headers: &RawHeaders) -> Vec<u8> {
    let mut out = (headers.len() as u32).to_le_bytes().to_vec();
    for (name, value) in headers {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in headers {
        out.extend([name, &b"\0"[..], value, b"\0"].concat());
    }
    out
}

fn deserialize(map: &[u8]) -> RawHeaders {
    let number = |at: usize| u32::from_le_bytes(map[at..at + 4].try_into().expect("four bytes")) as usize;
    let count = number(0);
    let mut at = 4 + 8 * count;
    let mut take = |size: usize| {
        at += size + 1;
        map[at - size - 1..at - 1].to_vec()
    };
    (0..count).map(|index| (take(number(4 + 8 * index)), take(number(8 + 8 * index)))).collect()
}
