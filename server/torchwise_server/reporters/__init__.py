"""Reports: conversion from the frozen types of analysis and memory to text and JSON, one module a format."""
