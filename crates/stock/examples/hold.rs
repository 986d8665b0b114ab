fn main() {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("run") {
        let c = vcoop_stock::Control::new(args.next().unwrap());
        let line = args.collect::<Vec<_>>().join(" ");
        let o = c.run(&line, std::time::Duration::from_secs(60)).unwrap();
        print!("{}", o.stdout);
        eprint!("{}", o.stderr);
        return;
    }
    let vm = vcoop_stock::StockVm::start(&vcoop_stock::Options {
        name: "demo".into(),
        emulator_cpus: vec![0],
        vcpu_cpus: vec![1],
        ..Default::default()
    })
    .unwrap();
    let hogs = vcoop_stock::Hogs::start(2, 1).unwrap();
    println!("{}", vm.control().socket().display());
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(hogs);
}
