//go:build !unix

package main

import (
	"errors"
	"os"
)

var errNoStop = errors.New("this story stops a process with SIGSTOP, which needs a Unix")

func suspend(*os.Process) error { return errNoStop }

func resume(*os.Process) error { return errNoStop }

func suspended(*os.Process) bool { return false }
