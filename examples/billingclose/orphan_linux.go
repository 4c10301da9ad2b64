package main

import "syscall"

// dieWithParent makes the kernel kill a worker when this process is killed: a
// stopped worker cannot notice by itself.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
