//go:build !unix

package main

import (
	"context"
	"errors"
	"os"
)

func suspend(context.Context, *os.Process) error {
	return errors.New("this system cannot stop a process")
}

func resume(*os.Process) error { return errors.New("this system cannot continue a process") }
